"""The tiny checkpoint's model config: every part, as small as vLLM's CPU kernels allow.

What those ask of the text models: a head size of 32 or more, hidden and expert widths that are
multiples of 32, and M-RoPE sections that add up to half a head. vLLM also reads
`vision_config.image_size`, which transformers does not know.
"""

from transformers import Qwen3OmniMoeConfig

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.processors import MERGE_SIZE, TEMPORAL_PATCH_SIZE
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen3_omni.checkpoint.processors import PATCH_SIZE

HIDDEN_SIZE = 64
TALKER_HIDDEN_SIZE = 32
EXPERT_SIZE = 32
NUM_CODEBOOKS = 4
CODEBOOK_SIZE = 64
SPEAKERS = ("ethan", "chelsie", "aiden")

# Ids from here on are no codes; transformers suppresses the talker's last 1024 ids but codec EOS.
_FIRST_SPECIAL_CODE = CODEBOOK_SIZE
CODEC_EOS = _FIRST_SPECIAL_CODE + 10
_MAX_POSITIONS = 4096
_ROPE = {
    "rope_theta": 1e6,
    "rope_type": "default",
    "mrope_section": [6, 5, 5],
    "mrope_interleaved": True,
    "interleaved": True,
}


def make_config(
    tokenizer: TinyTokenizer, has_talker: bool = True, expert_size: int = EXPERT_SIZE
) -> Qwen3OmniMoeConfig:
    """The whole model's config, with the tokenizer's ids; without a talker the thinker's alone."""
    media_ids = {
        "audio_token_id": tokenizer.id("<|audio_pad|>"),
        "image_token_id": tokenizer.id("<|image_pad|>"),
        "video_token_id": tokenizer.id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.id("<|vision_start|>"),
        "audio_start_token_id": tokenizer.id("<|audio_start|>"),
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }
    speaking = {"talker_config": media_ids | _talker(expert_size), "code2wav_config": _code2wav()}
    config = Qwen3OmniMoeConfig(
        thinker_config=media_ids | _thinker(tokenizer, expert_size),
        **(speaking if has_talker else {}),
        enable_audio_output=has_talker,
        im_start_token_id=tokenizer.id("<|im_start|>"),
        im_end_token_id=tokenizer.id("<|im_end|>"),
        user_token_id=tokenizer.id("user"),
        system_token_id=tokenizer.id("system"),
        assistant_token_id=tokenizer.id("assistant"),
        tts_pad_token_id=tokenizer.id("<tts_pad>"),
        tts_bos_token_id=tokenizer.id("<tts_text_bos>"),
        tts_eos_token_id=tokenizer.id("<tts_text_eod>"),
    )
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    return config


def _thinker(tokenizer: TinyTokenizer, expert_size: int) -> Json:
    return {
        "vision_end_token_id": tokenizer.id("<|vision_end|>"),
        "audio_end_token_id": tokenizer.id("<|audio_end|>"),
        "user_token_id": tokenizer.id("user"),
        "pad_token_id": tokenizer.id("<|endoftext|>"),
        "text_config": {
            "vocab_size": tokenizer.padded_size,
            "hidden_size": HIDDEN_SIZE,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": expert_size,
            "norm_topk_prob": True,
            "rope_parameters": _ROPE,
            "rope_scaling": _ROPE,
            "rope_theta": _ROPE["rope_theta"],
            "max_position_embeddings": _MAX_POSITIONS,
            "tie_word_embeddings": False,
        },
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "d_model": 64,
            "output_dim": HIDDEN_SIZE,
            "downsample_hidden_size": 16,
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 400,
            "conv_chunksize": 500,
        },
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_SIZE,
            "patch_size": PATCH_SIZE,
            "image_size": 8 * PATCH_SIZE,
            "num_position_embeddings": 8 * 8,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "in_channels": 3,
            "deepstack_visual_indexes": [0, 1],
            "apply_vit_abs_pos_embed": True,
        },
    }


def _talker(expert_size: int) -> Json:
    return {
        "num_code_groups": NUM_CODEBOOKS,
        "spatial_merge_size": MERGE_SIZE,
        "thinker_hidden_size": HIDDEN_SIZE,
        "accept_hidden_layer": 3,
        "codec_eos_token_id": CODEC_EOS,
        "codec_nothink_id": _FIRST_SPECIAL_CODE + 11,
        "codec_think_bos_id": _FIRST_SPECIAL_CODE + 12,
        "codec_think_eos_id": _FIRST_SPECIAL_CODE + 13,
        "codec_pad_id": _FIRST_SPECIAL_CODE + 14,
        "codec_bos_id": _FIRST_SPECIAL_CODE + 15,
        "speaker_id": {
            speaker: _FIRST_SPECIAL_CODE + 20 + index for index, speaker in enumerate(SPEAKERS)
        },
        "text_config": {
            "vocab_size": CODEBOOK_SIZE + 1024,
            "hidden_size": TALKER_HIDDEN_SIZE,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "num_experts": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": expert_size,
            "shared_expert_intermediate_size": expert_size,
            "rope_parameters": _ROPE,
            "max_position_embeddings": _MAX_POSITIONS,
            "tie_word_embeddings": False,
        },
        "code_predictor_config": {
            "vocab_size": CODEBOOK_SIZE,
            "hidden_size": TALKER_HIDDEN_SIZE,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "num_code_groups": NUM_CODEBOOKS,
            "max_position_embeddings": 2048,
        },
    }


def _code2wav() -> dict[str, object]:
    return {
        "codebook_size": CODEBOOK_SIZE,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_quantizers": NUM_CODEBOOKS,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 32,
        "sliding_window": 8,
        "max_position_embeddings": 512,
    }
