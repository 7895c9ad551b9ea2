"""The configurations of Qwen2.5-Omni 7B and 3B.

The sizes of the 3B's talker are chosen, not read: with them it has the published number of
parameters.
"""

from dataclasses import dataclass

from transformers import Qwen2_5OmniConfig

from omnistage.stage_configs.json_types import Json

TEXT_PAD, TEXT_START, TEXT_END, FIRST_SPEAKER = 151859, 151860, 151861, 151870
SPEAKER_SIZE = 192
_ROPE = {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [16, 24, 24]}
_MEDIA_IDS = {
    "audio_token_index": 151646,
    "audio_start_token_id": 151647,
    "audio_end_token_id": 151648,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_index": 151655,
    "video_token_index": 151656,
    "position_id_per_seconds": 25,
    "seconds_per_chunk": 2,
}


@dataclass(frozen=True)
class Sizes:
    """The sizes by which the two differ: of the thinker's text model, and of the talker."""

    vocab_size: int
    hidden_size: int
    text: dict[str, int]
    talker: dict[str, int]


B7 = Sizes(
    vocab_size=152064,
    hidden_size=3584,
    text={
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    talker={
        "intermediate_size": 18944,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
)
B3 = Sizes(
    vocab_size=151936,
    hidden_size=2048,
    text={
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    talker={
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
)


def real_config(sizes: Sizes) -> Qwen2_5OmniConfig:
    """The whole model's config; bfloat16."""
    config = Qwen2_5OmniConfig(
        thinker_config=_thinker(sizes),
        talker_config=_talker(sizes),
        token2wav_config=_token2wav(),
        enable_audio_output=True,
        dtype="bfloat16",
    )
    config.architectures = ["Qwen2_5OmniModel"]
    return config


def _text_model(mrope_section: list[int]) -> dict[str, object]:
    """Returns what the thinker's and the talker's text models have in common."""
    rope = {**_ROPE, "mrope_section": mrope_section}
    return {
        "rope_parameters": rope,
        "rope_scaling": rope,
        "rope_theta": _ROPE["rope_theta"],
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _thinker(sizes: Sizes) -> Json:
    return {
        **_MEDIA_IDS,
        "user_token_id": 872,
        "pad_token_id": 151643,
        "dtype": "bfloat16",
        "text_config": {
            **_text_model([16, 24, 24]),
            "vocab_size": sizes.vocab_size,
            "hidden_size": sizes.hidden_size,
            **sizes.text,
        },
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "d_model": 1280,
            "output_dim": sizes.hidden_size,
            "max_source_positions": 1500,
            "n_window": 100,
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": sizes.hidden_size,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }


def _talker(sizes: Sizes) -> Json:
    quarter = sizes.talker["head_dim"] // 4
    return {
        **_MEDIA_IDS,
        **_text_model([quarter // 2, quarter * 3 // 4, quarter * 3 // 4]),
        "vocab_size": 8448,
        "embedding_size": sizes.hidden_size,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        **sizes.talker,
        "spatial_merge_size": 2,
        "tts_text_start_token_id": TEXT_START,
        "tts_text_end_token_id": TEXT_END,
        "tts_text_pad_token_id": TEXT_PAD,
        "tts_codec_start_token_id": 8293,
        "tts_codec_end_token_id": 8294,
        "tts_codec_pad_token_id": 8292,
        "tts_codec_mask_token_id": 8296,
    }


def _token2wav() -> dict[str, object]:
    """The classes' own sizes are the published ones."""
    return {"dtype": "float32", "dit_config": {}, "bigvgan_config": {}}
