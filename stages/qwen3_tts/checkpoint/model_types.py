"""The types and sizes of Qwen3-TTS models, as config.json calls them."""

from typing import Literal

from omnistage.stage_configs.json_types import Json

ModelType = Literal["custom_voice", "voice_design", "base"]
ModelSize = Literal["0b6", "1b7"]


def whole_config(
    model_type: ModelType,
    model_size: ModelSize,
    talker: Json,
    speaker_encoder: Json,
    token_ids: dict[str, int],
) -> Json:
    """Returns what config.json says; only a Base model has a speaker encoder, and only CustomVoice
    names.

    `token_ids`: those of the text's vocabulary that a prompt is made of.
    """
    nobody: Json = {"spk_id": {}, "spk_is_dialect": {}}
    names = {} if model_type == "custom_voice" else nobody
    encoder = {"speaker_encoder_config": speaker_encoder} if model_type == "base" else {}
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": model_size,
        "tts_model_type": model_type,
        **token_ids,
        "talker_config": {"model_type": "qwen3_tts_talker", **talker, **names},
        **encoder,
    }
