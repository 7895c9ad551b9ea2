"""The configurations of Qwen3-TTS-12Hz of 0.6B and 1.7B: what their config.json says."""

from typing import Any

from omnistage.stage_configs.json_types import Json
from omnistage.stages.qwen3_tts.checkpoint.model_types import ModelSize, ModelType, whole_config

_TOKEN_IDS = {
    "im_start_token_id": 151644,
    "im_end_token_id": 151645,
    "assistant_token_id": 77091,
    "tts_pad_token_id": 151671,
    "tts_bos_token_id": 151672,
    "tts_eos_token_id": 151673,
}
_LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
_DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
_SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
_DIALECT_OF = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
_HIDDEN_SIZES = {"0b6": 1024, "1b7": 2048}


def real_config(model_type: ModelType, model_size: ModelSize) -> Json:
    """The whole model's config."""
    hidden_size = _HIDDEN_SIZES[model_size]
    encoder = {"enc_dim": hidden_size, "sample_rate": 24000}
    return whole_config(model_type, model_size, _talker(hidden_size), encoder, _TOKEN_IDS)


def _transformer(**sizes: Any) -> Json:
    """Returns what the talker and its code predictor have in common."""
    return {
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "num_code_groups": 16,
        "attention_bias": False,
        **sizes,
    }


def _talker(hidden_size: int) -> Json:
    return {
        **_transformer(
            hidden_size=hidden_size,
            intermediate_size=3 * hidden_size,
            num_hidden_layers=28,
            max_position_embeddings=32768,
        ),
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
        },
        "vocab_size": 3072,
        "text_hidden_size": 2048,
        "text_vocab_size": 151936,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "spk_id": _SPEAKERS,
        "spk_is_dialect": {name: _DIALECT_OF.get(name, False) for name in _SPEAKERS},
        "codec_language_id": _LANGUAGES | _DIALECTS,
        "code_predictor_config": _transformer(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=5,
            max_position_embeddings=65536,
            rope_scaling=None,
            vocab_size=2048,
        ),
    }
