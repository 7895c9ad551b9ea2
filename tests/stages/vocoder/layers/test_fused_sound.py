"""The fused layers against the exact ones; without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from typing import Any

import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS
from support.stages.carried import CarriedStreams
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.vocoder.layers.sound import ExactSound
from omnistage.stages.vocoder.state import StateLayout

pytestmark = RUNS_KERNELS
LATENT, FACTOR = 64, 6


def make_decoder(looks_ahead: bool) -> nn.ModuleList:
    """Widths 128, 64 and 32; two blocks that make 2 and 3 steps of one."""
    config = Qwen3OmniMoeCode2WavConfig(
        hidden_size=LATENT,
        decoder_dim=128,
        upsample_rates=(2, 3),
        upsampling_ratios=(),
        num_hidden_layers=0,
        codebook_size=4,
        num_quantizers=1,
    )
    torch.manual_seed(0)
    decoder: nn.ModuleList = Qwen3OmniMoeCode2Wav(config).decoder
    for name, parameter in decoder.named_parameters():
        if name.endswith(("alpha", "beta")):
            parameter.data.uniform_(-0.5, 0.5)
        elif name.endswith("weight"):
            parameter.data.normal_(0, 0.5 * parameter[0].numel() ** -0.5)
        else:
            parameter.data.uniform_(-0.1, 0.1)
    layers: Any = decoder
    for layer in layers:
        if not looks_ahead and hasattr(layer, "block"):
            layer.block[1].left_pad = 0
    return decoder.requires_grad_(False).to(DEVICE)


@pytest.mark.parametrize("looks_ahead", [True, False])
@torch.inference_mode()
def test_fused_layers_equal_exact_ones_in_any_chunks(looks_ahead: bool) -> None:
    from omnistage.stages.vocoder.layers.fused_sound import FusedSound

    decoder = make_decoder(looks_ahead)
    layout, other = StateLayout(), StateLayout()
    exact = ExactSound(decoder, layout)
    fused = FusedSound(decoder, other)
    assert fused.num_muted == exact.num_muted == (9 if looks_ahead else 0)
    streams = [
        CarriedStreams(layers, own, 3, DEVICE, steps=2)
        for layers, own in ((exact, layout), (fused, other))
    ]
    generator = torch.Generator().manual_seed(1)
    long = [] if IS_INTERPRETED else [([2], 40)]
    for number, chunk in [([0], 2), ([0, 1], 3), ([2, 1, 0], 25), ([1, 2], 2), *long]:
        hidden = torch.randn(len(number), LATENT, chunk, generator=generator).to(DEVICE)
        expected, found = (kind.put(number, hidden) for kind in streams)
        assert found.shape == expected.shape == (len(number), FACTOR * chunk)
        assert expected.std() > 0.01
        assert (found - expected).abs().max() < 1e-5


@torch.inference_mode()
def test_parameters_are_views_of_what_the_kernels_read() -> None:
    from omnistage.stages.vocoder.layers.fused_sound import FusedSound

    decoder = make_decoder(looks_ahead=True)
    before = {name: one.clone() for name, one in decoder.named_parameters()}
    places = {
        layer.product.weight.data_ptr() for layer in FusedSound(decoder, StateLayout())._layers
    }
    convs = [one for one in decoder.modules() if isinstance(one, nn.Conv1d | nn.ConvTranspose1d)]
    assert places == {conv.weight.data_ptr() for conv in convs}
    again = FusedSound(decoder, StateLayout())
    assert places == {layer.product.weight.data_ptr() for layer in again._layers}
    for name, one in decoder.named_parameters():
        assert torch.equal(one, before[name])


@pytest.mark.parametrize(("num_past", "width"), [(1, 64), (6, 96), (18, 32), (54, 96)])
@torch.inference_mode()
def test_context_goes_before_the_rows_and_becomes_their_last(num_past: int, width: int) -> None:
    from omnistage.stages.vocoder.layers.sound_kernels import carry

    generator = torch.Generator().manual_seed(2)
    for length in (1, 5, num_past, 70):
        state = torch.randn(3, 7 + num_past * width, generator=generator).to(DEVICE)
        context = state[:, 7:].view(3, num_past, width)
        rows = torch.randn(3, length, width, generator=generator).to(DEVICE)
        padded = torch.cat([torch.zeros_like(context), rows], dim=1)
        expected = torch.cat([context, rows], dim=1)
        before = state[:, :7].clone()
        carry(padded, context)
        assert torch.equal(padded, expected)
        assert torch.equal(context, expected[:, length:])
        assert torch.equal(state[:, :7], before)
