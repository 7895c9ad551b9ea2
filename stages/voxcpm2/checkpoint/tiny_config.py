"""The tiny checkpoint's config.json: every part, as small as vLLM's CPU kernels allow."""

from omnistage.stage_configs.json_types import Json
from omnistage.stages.voxcpm2.checkpoint.tiny_tokenizer import VOCAB_SIZE

LATENT_SIZE = 16
_HEAD_DIM = 32
_MAX_POSITIONS = 4096


def make_config() -> Json:
    """Sizes and settings; what a patch is in samples is as in the real model."""
    small = {
        "hidden_dim": 48,
        "ffn_dim": 64,
        "num_heads": 2,
        "num_layers": 2,
        "kv_channels": _HEAD_DIM,
    }
    stretched = [1 + 0.05 * number for number in range(_HEAD_DIM // 2)]
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "max_position_embeddings": _MAX_POSITIONS,
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "kv_channels": _HEAD_DIM,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": stretched,
                "short_factor": [1.0] * len(stretched),
                "original_max_position_embeddings": _MAX_POSITIONS // 2,
            },
            "vocab_size": VOCAB_SIZE,
            "scale_emb": 12.0,
            "dim_model_base": 64,
            "scale_depth": 1.4,
            "use_mup": False,
        },
        "patch_size": 4,
        "feat_dim": LATENT_SIZE,
        "residual_lm_num_layers": 2,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 32,
        "scalar_quantization_scale": 9,
        "encoder_config": small,
        "dit_config": {**small, "dit_mean_mode": False, "cfm_config": _flow()},
        "audio_vae_config": {
            "encoder_dim": 8,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": LATENT_SIZE,
            "decoder_dim": 128,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "depthwise": True,
            "sample_rate": 16000,
            "out_sample_rate": 48000,
            "use_noise_block": False,
            "sr_bin_boundaries": [20000, 30000, 40000],
            "cond_type": "scale_bias",
            "cond_dim": 8,
            "cond_out_layer": False,
        },
        "max_length": 512,
        "device": "cpu",
        "dtype": "float32",
    }


def _flow() -> Json:
    return {
        "sigma_min": 1e-06,
        "solver": "euler",
        "t_scheduler": "log-norm",
        "training_cfg_rate": 0.1,
        "inference_cfg_rate": 1.0,
    }
