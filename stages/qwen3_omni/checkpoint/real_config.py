"""The configuration of Qwen3-Omni-30B-A3B: what its config.json says."""

from typing import Any

from transformers import Qwen3OmniMoeConfig

_ROPE = {
    "rope_theta": 1e6,
    "rope_type": "default",
    "mrope_section": [24, 20, 20],
    "mrope_interleaved": True,
    "interleaved": True,
}
_MEDIA_IDS = {
    "audio_start_token_id": 151669,
    "audio_end_token_id": 151670,
    "audio_token_id": 151675,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "user_token_id": 872,
    "position_id_per_seconds": 13,
    "seconds_per_chunk": 2,
}


def real_config() -> Qwen3OmniMoeConfig:
    """The whole model's config; bfloat16."""
    config = Qwen3OmniMoeConfig(
        thinker_config=_thinker(),
        talker_config=_talker(),
        code2wav_config=_code2wav(),
        enable_audio_output=True,
        im_start_token_id=151644,
        im_end_token_id=151645,
        system_token_id=8948,
        user_token_id=872,
        assistant_token_id=77091,
        tts_pad_token_id=151671,
        tts_bos_token_id=151672,
        tts_eos_token_id=151673,
        dtype="bfloat16",
    )
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    return config


def _text(**sizes: Any) -> dict[str, Any]:
    """Returns what the thinker's and the talker's text models have in common."""
    return {
        "num_experts": 128,
        "head_dim": 128,
        "norm_topk_prob": True,
        "rope_parameters": _ROPE,
        "rope_scaling": _ROPE,
        "rope_theta": _ROPE["rope_theta"],
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **sizes,
    }


def _thinker() -> dict[str, Any]:
    return {
        **_MEDIA_IDS,
        "dtype": "bfloat16",
        "text_config": _text(
            vocab_size=152064,
            hidden_size=2048,
            intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "d_model": 1280,
            "output_dim": 2048,
            "downsample_hidden_size": 480,
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
        },
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "patch_size": 16,
            "image_size": 768,
            "num_position_embeddings": 2304,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "deepstack_visual_indexes": [8, 16, 24],
            "apply_vit_abs_pos_embed": True,
        },
    }


def _talker() -> dict[str, Any]:
    return {
        **_MEDIA_IDS,
        "dtype": "bfloat16",
        "num_code_groups": 16,
        "spatial_merge_size": 2,
        "thinker_hidden_size": 2048,
        "accept_hidden_layer": 24,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": _text(
            vocab_size=3072,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=20,
            num_attention_heads=16,
            num_key_value_heads=2,
            num_local_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=384,
            shared_expert_intermediate_size=768,
        ),
        "code_predictor_config": {
            "vocab_size": 2048,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 5,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_code_groups": 16,
            "max_position_embeddings": 32768,
            "dtype": "bfloat16",
        },
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "decoder_dim": 1536,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "sliding_window": 72,
        "max_position_embeddings": 8000,
    }
