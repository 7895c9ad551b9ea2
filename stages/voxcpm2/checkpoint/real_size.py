"""Writes all of a VoxCPM2 model but its weights: a folder to serve with dummy weights."""

from pathlib import Path

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.voxcpm2.checkpoint.tiny_tokenizer import make_tokenizer, tokenizer_config

_HEAD_DIM = 128
_MAX_POSITIONS = 32_768
_VOCAB_SIZE = 73_448


def write(folder: Path) -> None:
    """Config and a tokenizer of single characters, in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", real_config())
    make_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config())


def real_config() -> Json:
    """The 2B model's sizes: 28 and 8 layers, a codec of 64 channels at 25 latents a second."""
    local = {
        "hidden_dim": 1024,
        "ffn_dim": 4096,
        "num_heads": 16,
        "num_layers": 12,
        "kv_channels": _HEAD_DIM,
    }
    factors = [1.0] * (_HEAD_DIM // 2)
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "max_position_embeddings": _MAX_POSITIONS,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "kv_channels": _HEAD_DIM,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": factors,
                "short_factor": factors,
                "original_max_position_embeddings": _MAX_POSITIONS,
            },
            "vocab_size": _VOCAB_SIZE,
            "scale_emb": 12.0,
            "dim_model_base": 256,
            "scale_depth": 1.4,
            "use_mup": False,
        },
        "patch_size": 4,
        "feat_dim": 64,
        "residual_lm_num_layers": 8,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 512,
        "scalar_quantization_scale": 9,
        "encoder_config": local,
        "dit_config": {**local, "dit_mean_mode": False, "cfm_config": {}},
        "max_length": 8192,
        "device": "cuda",
        "dtype": "bfloat16",
    }
