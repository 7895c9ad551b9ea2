"""The fused layers against the exact ones; without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from typing import Any

import pytest
import torch
from support.kernels import DEVICE, RUNS_KERNELS
from support.stages.carried import CarriedStreams
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.vocoder.layers.upsampling import ExactUpsampling
from omnistage.stages.vocoder.state import StateLayout

pytestmark = RUNS_KERNELS
FACTORS, FACTOR = (2, 3), 6


def make_stages(width: int = 48) -> Any:
    config = Qwen3OmniMoeCode2WavConfig(
        hidden_size=width,
        decoder_dim=32,
        upsample_rates=(2,),
        upsampling_ratios=FACTORS,
        num_hidden_layers=0,
        codebook_size=4,
        num_quantizers=1,
    )
    torch.manual_seed(0)
    stages: nn.ModuleList = Qwen3OmniMoeCode2Wav(config).upsample
    for name, parameter in stages.named_parameters():
        if name.endswith("dwconv.conv.weight"):
            parameter.data.normal_(0, 0.5)
        elif parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
        else:
            parameter.data.uniform_(0.2, 1.0)
    return stages.requires_grad_(False).to(DEVICE)


def streams_of(kind: Any, stages: Any) -> CarriedStreams:
    """Three, with one kind of layers."""
    layout = StateLayout()
    return CarriedStreams(kind(stages, layout), layout, 3, DEVICE, steps=1)


@pytest.mark.parametrize("width", [48, 288])
@torch.inference_mode()
def test_fused_layers_equal_exact_ones_in_any_chunks(width: int) -> None:
    """Chunks that make fewer steps than the convolution reaches back over, and more."""
    from omnistage.stages.vocoder.layers.fused_upsampling import FusedUpsampling, is_fusible

    stages = make_stages(width)
    assert is_fusible(stages)
    exact, fused = streams_of(ExactUpsampling, stages), streams_of(FusedUpsampling, stages)
    generator = torch.Generator().manual_seed(1)
    for numbers, length in (([0], 1), ([0, 1], 1), ([2, 1, 0], 2), ([1, 2], 4), ([2, 1, 0], 1)):
        hidden = torch.randn(len(numbers), length, width, generator=generator).to(DEVICE)
        expected, found = exact.put(numbers, hidden), fused.put(numbers, hidden)
        assert found.shape == expected.shape == (len(numbers), width, FACTOR * length)
        assert expected.std() > 0.1
        assert (found - expected).abs().max() < 1e-4


@torch.inference_mode()
def test_parameters_are_views_of_what_the_kernels_read() -> None:
    from omnistage.stages.vocoder.layers.fused_upsampling import FusedUpsampling

    stages = make_stages()
    before = {name: one.clone() for name, one in stages.named_parameters()}
    layers = FusedUpsampling(stages, StateLayout())._stages
    again = FusedUpsampling(stages, StateLayout())._stages
    for (upsampling, block), layer, other in zip(stages, layers, again, strict=True):
        assert upsampling.conv.weight.data_ptr() == layer.weight.data_ptr()
        assert block.dwconv.conv.weight.data_ptr() == layer.taps.data_ptr()
        assert other.weight.data_ptr() == layer.weight.data_ptr()
        assert other.taps.data_ptr() == layer.taps.data_ptr()
    for name, one in stages.named_parameters():
        assert torch.equal(one, before[name])


def test_convolutions_that_read_more_than_a_step_are_not_fused() -> None:
    from omnistage.stages.vocoder.layers.fused_upsampling import is_fusible

    stages = make_stages()
    stages[1][0].conv = nn.ConvTranspose1d(48, 48, 4, 2)
    assert not is_fusible(stages)
