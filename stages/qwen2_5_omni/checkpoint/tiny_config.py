"""The tiny checkpoint's model config: every part, as small as vLLM's CPU kernels allow.

What those ask of the text models: a head size of 32 or more, which is the hidden size over the
number of heads, widths that are multiples of 32, and M-RoPE sections that add up to half a head.
"""

from transformers import Qwen2_5OmniConfig

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.processors import MERGE_SIZE, TEMPORAL_PATCH_SIZE
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen2_5_omni.checkpoint.processors import PATCH_SIZE
from omnistage.stages.qwen2_5_omni.checkpoint.speakers import MEL_SIZE, SPEAKERS

HIDDEN_SIZE = 64
TALKER_HIDDEN_SIZE = 32
SPEAKER_SIZE = 16

# The talker's vocabulary: codes, then what the DiT has no embedding for.
NUM_CODES = 96
CODEC_PAD, CODEC_BOS, CODEC_EOS, CODEC_MASK = 100, 101, 102, 104
_MAX_POSITIONS = 4096
_ROPE = {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [4, 6, 6]}


class SpeechTokens:
    """Text tokens that steer the speech: like the published ones they have an id and no name."""

    def __init__(self, tokenizer: TinyTokenizer) -> None:
        self.pad = tokenizer.tokenizer.get_vocab_size()
        self.start, self.end = self.pad + 1, self.pad + 2
        self.first_speaker = self.pad + 3
        assert self.first_speaker + len(SPEAKERS) <= tokenizer.padded_size


def make_config(tokenizer: TinyTokenizer, real_dit: bool = False) -> Qwen2_5OmniConfig:
    """The whole model's config; with `real_dit` the DiT has the published one's layers, narrow."""
    media_ids = {
        "audio_token_index": tokenizer.id("<|AUDIO|>"),
        "image_token_index": tokenizer.id("<|IMAGE|>"),
        "video_token_index": tokenizer.id("<|VIDEO|>"),
        "audio_start_token_id": tokenizer.id("<|audio_bos|>"),
        "audio_end_token_id": tokenizer.id("<|audio_eos|>"),
        "vision_start_token_id": tokenizer.id("<|vision_bos|>"),
        "vision_end_token_id": tokenizer.id("<|vision_eos|>"),
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    config = Qwen2_5OmniConfig(
        thinker_config=media_ids | _thinker(tokenizer),
        talker_config=media_ids | _talker(SpeechTokens(tokenizer)),
        token2wav_config={"dit_config": _dit(real_dit), "bigvgan_config": _bigvgan()},
        enable_audio_output=True,
    )
    config.architectures = ["Qwen2_5OmniModel"]
    return config


def _thinker(tokenizer: TinyTokenizer) -> Json:
    return {
        "user_token_id": tokenizer.id("user"),
        "pad_token_id": tokenizer.id("<|endoftext|>"),
        "text_config": {
            "vocab_size": tokenizer.padded_size,
            "hidden_size": HIDDEN_SIZE,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": _ROPE,
            "rope_scaling": _ROPE,
            "rope_theta": _ROPE["rope_theta"],
            "max_position_embeddings": _MAX_POSITIONS,
            "tie_word_embeddings": False,
        },
        "audio_config": {
            "num_mel_bins": 128,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": HIDDEN_SIZE,
            "max_source_positions": 1500,
            "n_window": 100,
        },
        "vision_config": {
            "depth": 2,
            "fullatt_block_indexes": [1],
            "window_size": 112,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_SIZE,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "in_channels": 3,
        },
    }


def _talker(tokens: SpeechTokens) -> Json:
    return {
        "vocab_size": 128,
        "embedding_size": HIDDEN_SIZE,
        "hidden_size": TALKER_HIDDEN_SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rope_parameters": _ROPE,
        "rope_scaling": _ROPE,
        "rope_theta": _ROPE["rope_theta"],
        "max_position_embeddings": _MAX_POSITIONS,
        "spatial_merge_size": MERGE_SIZE,
        "tts_text_start_token_id": tokens.start,
        "tts_text_end_token_id": tokens.end,
        "tts_text_pad_token_id": tokens.pad,
        "tts_codec_start_token_id": CODEC_BOS,
        "tts_codec_end_token_id": CODEC_EOS,
        "tts_codec_pad_token_id": CODEC_PAD,
        "tts_codec_mask_token_id": CODEC_MASK,
    }


def _dit(real: bool) -> dict[str, object]:
    """Blocks of 24 mel frames, as the published one's."""
    layers = {"num_hidden_layers": 5, "look_ahead_layers": [2], "look_backward_layers": [0, 4]}
    return {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "head_dim": 16,
        "emb_dim": 32,
        "num_embeds": NUM_CODES + 1,
        "mel_dim": MEL_SIZE,
        "enc_emb_dim": SPEAKER_SIZE,
        "enc_dim": 16,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_res2net_scale": 2,
        "enc_se_channels": 16,
        "dropout": 0.0,
        **({} if real else layers),
    }


def _bigvgan() -> dict[str, object]:
    return {"mel_dim": MEL_SIZE, "upsample_initial_channel": 128}
