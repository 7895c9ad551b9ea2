"""The fused vocoder against transformers' modules; TRITON_INTERPRET=1 runs it on a CPU."""

from itertools import product
from typing import Any

import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS, relative_error
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniSnakeBeta,
    Qwen2_5OmniToken2WavBigVGANModel,
)

from omnistage.stages.qwen2_5_omni.token2wav.bigvgan import HALF, WindowVocoder
from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_graphs import COUNTS

pytestmark = RUNS_KERNELS
BOUND = 1e-5 if IS_INTERPRETED else 1e-4  # a GPU's sine is the fast one
WIDTHS, LONG = ([24], []) if IS_INTERPRETED else ([8, 24, 96], [333])
ACTIVATED = [
    *product([1, 2, 3, 5, 11, 12, 13, 16, 17, 100, *LONG], WIDTHS),
    *product([1, 17], [8, 96] if IS_INTERPRETED else []),  # lanes of several programs
]
TOKEN2WAV = "omnistage.stages.qwen2_5_omni.token2wav"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs")


@pytest.fixture(autouse=True)
def few_steps_of_a_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, whose time goes by them, but where the activation itself is tested."""
    if IS_INTERPRETED and request.function is not test_the_activation_is_the_module_s:
        monkeypatch.setattr(f"{TOKEN2WAV}.bigvgan_kernels.STEPS", 4)


def make_vocoder(num_levels: int = 3) -> Any:
    """A narrow one with random weights and three of the published one's upsamplings."""
    config = Qwen2_5OmniBigVGANConfig(
        upsample_initial_channel=128,
        upsample_rates=[5, 3, 2][:num_levels],
        upsample_kernel_sizes=[11, 7, 4][:num_levels],
    )
    model: Any = Qwen2_5OmniToken2WavBigVGANModel(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            size = parameter[0].numel() ** -0.5
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
        elif name.endswith("bias"):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        else:
            parameter.uniform_(-0.5, 0.5, generator=generator)
    model.conv_post.weight.mul_(0.05)  # no sample is clamped
    return model.to(DEVICE)


def mel(num_windows: int, num_frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_frames)
    return (2 * torch.randn(num_windows, num_frames, 80, generator=generator) - 3).to(DEVICE)


@pytest.mark.parametrize(("length", "width"), ACTIVATED)
@torch.inference_mode()
def test_the_activation_is_the_module_s(length: int, width: int) -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import activation_of
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_kernels import activate

    net: Any = Qwen2_5OmniAntiAliasedActivation1d(Qwen2_5OmniSnakeBeta(width))
    generator = torch.Generator().manual_seed(length)
    net.act.alpha.uniform_(-1, 1, generator=generator)
    net.act.beta.uniform_(-1, 1, generator=generator)
    net.downsample.filter.mul_(torch.linspace(0.9, 1.1, 12))  # none of both is as the other
    net.to(DEVICE)  # the generator is the CPU's
    hidden = torch.randn(3, width, length, generator=generator).to(DEVICE)
    found = activate(hidden.mT.contiguous(), activation_of(net)).mT
    assert (found - net(hidden)).abs().max() < BOUND


@torch.inference_mode()
def test_what_it_stores_is_finite_in_half_precision() -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import activation_of
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_kernels import activate

    net: Any = Qwen2_5OmniAntiAliasedActivation1d(Qwen2_5OmniSnakeBeta(32)).to(DEVICE)
    net.act.beta.fill_(-12.0)
    hidden = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    activation = activation_of(net)
    assert activate(hidden, activation).max() > torch.finfo(torch.float16).max
    found = activate(hidden.half(), activation)
    assert found.dtype == torch.float16
    assert found.max() == torch.finfo(torch.float16).max


@pytest.mark.parametrize("num_processors", [1, 132], ids=["large tiles", "small tiles"])
@pytest.mark.parametrize("width", [16, 24, 96, 128])
@torch.inference_mode()
def test_a_convolution_is_the_module_s_with_sums(
    width: int, num_processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnistage.stages.qwen2_5_omni.token2wav import bigvgan_kernels
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import _convolution

    monkeypatch.setattr(bigvgan_kernels, "NUM_PROCESSORS", num_processors)
    torch.manual_seed(width)
    net = nn.Conv1d(width, width, 7, dilation=5, padding=15).to(DEVICE)
    hidden, residual, total = torch.randn(3, 2, 70, width).to(DEVICE)
    expected = net(hidden.mT).mT
    own = _convolution(net, torch.float32)
    assert (bigvgan_kernels.convolve(hidden, own) - expected).abs().max() < 1e-5
    found = bigvgan_kernels.convolve(hidden, own, residual)
    assert (found - expected - residual).abs().max() < 1e-5
    found = bigvgan_kernels.convolve(hidden, own, residual, total, 0.25)
    assert (found - 0.25 * (expected + residual + total)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("num_windows", "num_frames"), [(2, 1)] if IS_INTERPRETED else [(1, 1), (2, 5)]
)
@torch.inference_mode()
def test_fused_layers_make_the_modules_samples(num_windows: int, num_frames: int) -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import FusedBigVGAN, is_fusible

    model = make_vocoder()
    frames = mel(num_windows, num_frames)
    expected = WindowVocoder(model)._decode(frames)
    assert is_fusible(model)
    found = FusedBigVGAN(model, torch.float32)(frames)
    assert found.shape == expected.shape == (num_windows, 30 * num_frames)
    assert 0.01 < expected.std() < expected.abs().max() < 1
    assert relative_error(found, expected) < 10 * BOUND


@torch.inference_mode()
def test_half_precision_is_as_near_as_its_docstring_says() -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import FusedBigVGAN

    model, frames = make_vocoder(1 if IS_INTERPRETED else 3), mel(1, 2)
    expected = WindowVocoder(model)._decode(frames)
    found = FusedBigVGAN(model, HALF)(frames)
    assert found.dtype == torch.float32
    assert 0 < relative_error(found, expected) < 1e-2


@torch.inference_mode()
def test_loudness_is_the_reference_s() -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import loudness

    values = torch.linspace(-30, 10, 1000, device=DEVICE)
    expected = make_vocoder().process_mel_spectrogram(values)
    assert expected.min() == -1
    assert expected.max() == 1
    assert (loudness(values) - expected).abs().max() < 1e-6


@torch.inference_mode()
def test_parameters_are_views_of_what_the_kernels_read() -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import FusedBigVGAN

    model = make_vocoder()
    before = {name: one.clone() for name, one in model.named_parameters()}
    for _ in range(2):
        levels = FusedBigVGAN(model, HALF)._levels
        units = [unit for level in levels for block in level.blocks for unit in block]
        read = [level.upsampling for level in levels]
        read += [conv for unit in units for conv in (unit.dilated, unit.plain)]
        places = {conv.weight.untyped_storage().data_ptr() for conv in read}
        half = {name: one for name, one in model.named_parameters() if one.dtype == HALF}
        assert {one.untyped_storage().data_ptr() for one in half.values()} == places
        assert len(half) == len(places) == 3 * (1 + 3 * 6)
        for name, one in model.named_parameters():
            assert torch.equal(one, before[name].to(one.dtype))


@pytest.mark.parametrize("change", ["filter", "upsampling"])
def test_other_filters_and_upsamplings_are_the_modules(change: str) -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import is_fusible

    model = make_vocoder()
    if change == "filter":
        model.resblocks[4].activations[2] = Qwen2_5OmniAntiAliasedActivation1d(
            nn.Identity(), up_kernel_size=8
        )
    else:
        model.ups[1][0].output_padding = (1,)
    assert not is_fusible(model)


@needs_gpu
@torch.inference_mode()
def test_graphs_make_the_samples_of_their_layers() -> None:
    vocoder = WindowVocoder(make_vocoder(), is_half=True)
    expected = {
        shape: vocoder(mel(*shape))
        for shape in [(1, 48), (3, 48), (max(COUNTS), 48), (max(COUNTS) + 1, 48), (1, 30), (2, 60)]
    }
    vocoder.capture({48, 60})
    for shape, samples in expected.items():
        recorded = vocoder._graphs.decode(mel(*shape))
        assert (recorded is None) == (shape[0] > max(COUNTS) or shape[1] == 30)
        assert relative_error(vocoder(mel(*shape)), samples) < 1e-3


@needs_gpu
@torch.inference_mode()
def test_float32_on_a_gpu_is_the_modules() -> None:
    model = make_vocoder()
    vocoder = WindowVocoder(model)
    vocoder.capture({48})
    assert vocoder._fused is None
    # Some of cuDNN's algorithms for transposed convolutions add in an order that varies.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        assert torch.equal(vocoder(mel(2, 48)), vocoder._decode(mel(2, 48)))
