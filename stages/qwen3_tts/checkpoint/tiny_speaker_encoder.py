"""The speaker encoder of a tiny Base checkpoint: its configuration and its random weights."""

from typing import Any

import torch

from omnistage.stages.qwen3_tts.checkpoint.noise import fill_with_noise
from omnistage.stages.qwen3_tts.speaker_encoder import SpeakerEncoder, SpeakerEncoderConfig

PREFIX = "speaker_encoder."


def tiny_speaker_encoder_config(hidden_size: int) -> dict[str, Any]:
    """`speaker_encoder_config` of the checkpoint; its vectors are as wide as the talker."""
    return {
        "mel_dim": 128,
        "enc_dim": hidden_size,
        "enc_channels": [16, 16, 16, 32],
        "enc_kernel_sizes": [5, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 1],
        "enc_attention_channels": 8,
        "enc_res2net_scale": 4,
        "enc_se_channels": 8,
        "sample_rate": 24_000,
    }


def tiny_speaker_encoder_tensors(hidden_size: int, seed: int) -> dict[str, torch.Tensor]:
    """Its weights by their names in the checkpoint's main file."""
    config = SpeakerEncoderConfig(**tiny_speaker_encoder_config(hidden_size))
    encoder = SpeakerEncoder(config).eval()
    fill_with_noise(encoder, torch.Generator().manual_seed(seed))
    return {f"{PREFIX}{name}": one for name, one in encoder.state_dict().items()}
