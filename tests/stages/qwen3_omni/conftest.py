"""Tiny random models of Qwen3-Omni's own classes."""

import math

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

VOCODER_CONFIG = Qwen3OmniMoeCode2WavConfig(
    codebook_size=32,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=32,
    num_hidden_layers=2,
    num_quantizers=4,
    decoder_dim=32,
    sliding_window=6,
)


@pytest.fixture(scope="session")
def vocoder_model() -> Qwen3OmniMoeCode2Wav:
    """The reference vocoder with the real upsampling factors; its waveform stays inside -1..1."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    model = Qwen3OmniMoeCode2Wav(VOCODER_CONFIG)
    model.train(False).requires_grad_(False)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("embedding.weight"):
            parameter.copy_(noise)
        elif parameter.dim() > 1:
            parameter.copy_(0.75 * noise / math.sqrt(parameter[0].numel()))
        elif name.endswith(("norm.weight", "scale", "gamma")):
            parameter.copy_(0.5 + 0.1 * noise)
        else:
            parameter.copy_(0.1 * noise)
    return model
