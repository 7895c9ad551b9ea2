"""Which weights are for fused kernels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnistage.stages.vocoder.layers.products import (
    FUSES_ALL,
    takes_all_fused_kernels,
    takes_fused_kernels,
)


def weight(dtype: torch.dtype, *, is_cuda: bool) -> Any:
    return SimpleNamespace(dtype=dtype, is_cuda=is_cuda)


def test_half_precision_on_a_gpu_takes_fused_kernels() -> None:
    assert takes_fused_kernels(weight(torch.bfloat16, is_cuda=True))
    assert takes_fused_kernels(weight(torch.float16, is_cuda=True))
    assert not takes_fused_kernels(weight(torch.float32, is_cuda=True))
    assert not takes_fused_kernels(weight(torch.bfloat16, is_cuda=False))


def test_those_of_the_transformer_are_for_stages_that_ask_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FUSES_ALL, raising=False)
    assert not takes_all_fused_kernels(weight(torch.bfloat16, is_cuda=True))
    monkeypatch.setenv(FUSES_ALL, "1")
    assert takes_all_fused_kernels(weight(torch.bfloat16, is_cuda=True))
    assert not takes_all_fused_kernels(weight(torch.float32, is_cuda=True))
