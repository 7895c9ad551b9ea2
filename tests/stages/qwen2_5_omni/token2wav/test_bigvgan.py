"""Windows of the vocoder against one decode of all frames."""

import pytest
import torch
from support.models.token2wav import make_token2wav

from omnistage.stages.qwen2_5_omni.token2wav.bigvgan import REACH, WindowVocoder

START, END = 60, 84


def mel(dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(1, 140, 80, dtype=dtype, generator=torch.Generator().manual_seed(seed)) - 3


@torch.inference_mode()
def decode(dtype: torch.dtype, frames: torch.Tensor) -> torch.Tensor:
    return WindowVocoder(make_token2wav(dtype=dtype).code2wav_bigvgan_model)._decode(frames)


@torch.inference_mode()
def test_it_is_the_reference_s() -> None:
    model = make_token2wav().code2wav_bigvgan_model
    frames = mel(torch.float32)
    expected = model(frames.mT)
    assert expected.abs().max() > 0.05
    assert torch.equal(WindowVocoder(model)(frames)[0], expected)


@pytest.mark.parametrize(("context", "bound"), [(REACH, 0.0), (20, 1e-6)])
def test_a_window_with_its_context_is_the_whole_s(context: int, bound: float) -> None:
    """At 34 frames to either side nothing is missing; at 20 less than float32 can say."""
    frames = mel(torch.float64)
    whole = decode(torch.float64, frames)[:, START * 240 : END * 240]
    part = decode(torch.float64, frames[:, START - context : END + context])
    part = part[:, context * 240 : -context * 240]
    assert (part - whole).abs().max() <= bound * whole.abs().max() + 1e-15


def test_samples_further_away_depend_on_no_frame() -> None:
    """`REACH` is the least that is enough: a frame nearer does change some."""
    frames = mel(torch.float64)
    other = frames.clone()
    other[:, 70] += 3
    changed = (decode(torch.float64, frames) != decode(torch.float64, other))[0].nonzero()
    assert changed.min() >= (70 - REACH) * 240
    assert changed.max() < (71 + REACH) * 240


@torch.inference_mode()
def test_bits_of_a_window_do_not_depend_on_the_others_in_the_batch() -> None:
    vocoder = WindowVocoder(make_token2wav().code2wav_bigvgan_model)
    windows = torch.cat([mel(torch.float32, seed)[:, :48] for seed in range(5)])
    together = vocoder(windows)
    assert all(
        torch.equal(vocoder(one[None])[0], row) for one, row in zip(windows, together, strict=True)
    )
