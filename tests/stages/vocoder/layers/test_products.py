"""Which weights are for fused kernels."""

from types import SimpleNamespace
from typing import Any

import torch

from omnistage.stages.vocoder.layers.products import takes_fused_kernels


def weight(dtype: torch.dtype, *, is_cuda: bool) -> Any:
    return SimpleNamespace(dtype=dtype, is_cuda=is_cuda)


def test_half_precision_on_a_gpu_takes_fused_kernels() -> None:
    assert takes_fused_kernels(weight(torch.bfloat16, is_cuda=True))
    assert takes_fused_kernels(weight(torch.float16, is_cuda=True))
    assert not takes_fused_kernels(weight(torch.float32, is_cuda=True))
    assert not takes_fused_kernels(weight(torch.bfloat16, is_cuda=False))
