"""The sizes of `small`: the tiny checkpoint's configuration, wider."""

from typing import Any

from transformers import Qwen3OmniMoeConfig
from voices import SPEAKERS

from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen3_omni.checkpoint.tiny_config import make_config

NUM_CODEBOOKS = 12
CODEBOOK_SIZE = 512
FRAME = 1920  # samples at 24 kHz, 80 ms
WIDTH = 256
_SPECIAL = CODEBOOK_SIZE

_TEXT = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
SIZES: dict[str, Any] = {
    "thinker_config": {
        "text_config": {**_TEXT, "num_hidden_layers": 6, "moe_intermediate_size": 192},
        "audio_config": {
            "encoder_layers": 4,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 768,
            "d_model": 192,
            "output_dim": WIDTH,
            "downsample_hidden_size": 48,
        },
        "vision_config": {
            "depth": 4,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_heads": 4,
            "out_hidden_size": WIDTH,
            "deepstack_visual_indexes": [1],
        },
    },
    "talker_config": {
        "num_code_groups": NUM_CODEBOOKS,
        "thinker_hidden_size": WIDTH,
        "accept_hidden_layer": 3,
        "codec_eos_token_id": _SPECIAL + 10,
        "codec_nothink_id": _SPECIAL + 11,
        "codec_think_bos_id": _SPECIAL + 12,
        "codec_think_eos_id": _SPECIAL + 13,
        "codec_pad_id": _SPECIAL + 14,
        "codec_bos_id": _SPECIAL + 15,
        "text_config": {
            **_TEXT,
            "vocab_size": CODEBOOK_SIZE + 1024,
            "num_hidden_layers": 6,
            "num_local_experts": 4,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 256,
        },
        "code_predictor_config": {
            "vocab_size": CODEBOOK_SIZE,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "num_code_groups": NUM_CODEBOOKS,
        },
    },
    "code2wav_config": {
        "codebook_size": CODEBOOK_SIZE,
        "hidden_size": WIDTH,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 3,
        "num_quantizers": NUM_CODEBOOKS,
        "decoder_dim": 256,
        "sliding_window": 16,
    },
}


def small_config(tokenizer: TinyTokenizer) -> Qwen3OmniMoeConfig:
    """The whole model's config, with the tokenizer's ids."""
    settings = make_config(tokenizer).to_dict()
    _update(settings, SIZES)
    settings["talker_config"]["speaker_id"] = {
        speaker: _SPECIAL + 20 + index for index, speaker in enumerate(SPEAKERS)
    }
    config = Qwen3OmniMoeConfig(**settings)
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    return config


def _update(settings: dict[str, Any], news: dict[str, Any]) -> None:
    settings.pop("layer_types", None)  # one a layer, of the tiny model's
    for name, value in news.items():
        if isinstance(value, dict):
            _update(settings[name], value)
        else:
            settings[name] = value
