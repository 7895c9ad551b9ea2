"""The tiny checkpoints' config: every part, as small as vLLM's CPU kernels allow.

As in the real models, the code predictor of 1b7 has another width than the talker, that of 0b6 has
the talker's.
"""

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen3_tts.checkpoint.model_types import ModelSize, ModelType, whole_config
from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    TINY_CODEBOOK_SIZE as CODEBOOK_SIZE,
)
from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    TINY_NUM_CODEBOOKS as NUM_CODEBOOKS,
)

TEXT_HIDDEN_SIZE = 48
PREDICTOR_HIDDEN_SIZE = 32
SPEAKERS = ("vivian", "ryan", "eric")
LANGUAGES = ("chinese", "english", "sichuan_dialect")
DIALECTS = {"eric": "sichuan_dialect"}  # of speakers

# The reference suppresses the talker's last 1024 ids but codec EOS: ids from here on are no codes.
_FIRST_SPECIAL_CODE = CODEBOOK_SIZE
_FIRST_SPEAKER, _FIRST_LANGUAGE = CODEBOOK_SIZE + 20, CODEBOOK_SIZE + 40
CODEC_EOS = _FIRST_SPECIAL_CODE + 10
_ROPE_THETA = 1e6
_MAX_POSITIONS = 4096


def make_config(model_type: ModelType, model_size: ModelSize, tokenizer: TinyTokenizer) -> Json:
    """The whole model's config, with the tokenizer's ids."""
    hidden_size = PREDICTOR_HIDDEN_SIZE * (2 if model_size == "1b7" else 1)
    token_ids = {
        "im_start_token_id": tokenizer.id("<|im_start|>"),
        "im_end_token_id": tokenizer.id("<|im_end|>"),
        "assistant_token_id": tokenizer.id("assistant"),
        "tts_pad_token_id": tokenizer.id("<tts_pad>"),
        "tts_bos_token_id": tokenizer.id("<tts_text_bos>"),
        "tts_eos_token_id": tokenizer.id("<tts_text_eod>"),
    }
    return whole_config(
        model_type,
        model_size,
        _talker(hidden_size, tokenizer.padded_size),
        _speaker_encoder(hidden_size),
        token_ids,
    )


def _transformer(hidden_size: int) -> Json:
    """Returns what the talker and its code predictor have in common."""
    return {
        "hidden_size": hidden_size,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_code_groups": NUM_CODEBOOKS,
        "rope_theta": _ROPE_THETA,
        "max_position_embeddings": _MAX_POSITIONS,
    }


def _talker(hidden_size: int, text_vocab_size: int) -> Json:
    return {
        **_transformer(hidden_size),
        "rope_scaling": {
            "rope_type": "default",
            "mrope_section": [6, 5, 5],
            "interleaved": True,
        },
        "vocab_size": CODEBOOK_SIZE + 1024,
        "text_hidden_size": TEXT_HIDDEN_SIZE,
        "text_vocab_size": text_vocab_size,
        "codec_eos_token_id": CODEC_EOS,
        "codec_think_id": _FIRST_SPECIAL_CODE + 11,
        "codec_nothink_id": _FIRST_SPECIAL_CODE + 12,
        "codec_think_bos_id": _FIRST_SPECIAL_CODE + 13,
        "codec_think_eos_id": _FIRST_SPECIAL_CODE + 14,
        "codec_pad_id": _FIRST_SPECIAL_CODE + 15,
        "codec_bos_id": _FIRST_SPECIAL_CODE + 16,
        "spk_id": {name: _FIRST_SPEAKER + index for index, name in enumerate(SPEAKERS)},
        "spk_is_dialect": {name: DIALECTS.get(name, False) for name in SPEAKERS},
        "codec_language_id": {name: _FIRST_LANGUAGE + i for i, name in enumerate(LANGUAGES)},
        "code_predictor_config": {
            **_transformer(PREDICTOR_HIDDEN_SIZE),
            "vocab_size": CODEBOOK_SIZE,
        },
    }


def _speaker_encoder(hidden_size: int) -> Json:
    return {
        "enc_dim": hidden_size,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 8,
        "enc_se_channels": 8,
        "sample_rate": 24000,
    }
