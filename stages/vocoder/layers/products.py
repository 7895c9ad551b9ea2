"""Weights and snakes as fused kernels read them, made of modules.

The weights lie as the kernels read them, and the modules' parameters become views of them.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional


def takes_fused_kernels(weight: torch.Tensor) -> bool:
    """Returns whether it is one of half precision on a GPU."""
    return weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)


def packed(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Them one after another, of which they are views from now on."""
    joined = torch.cat([one.detach() for one in parameters])
    parts = joined.split([len(one) for one in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data = part
    return joined


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution's weights, [taps, inputs, outputs] by their strides, and which rows it reads.

    Output row t reads the input rows t + first + tap * step. `factor` rows of `width` channels
    come of each: what a transposed convolution gives of one step. The bias is of any dtype.
    """

    weight: torch.Tensor
    tap_stride: int
    input_stride: int
    bias: torch.Tensor
    num_taps: int
    first: int
    step: int
    width: int
    factor: int = 1

    @classmethod
    def of(cls, conv: Any, first: int = 0, dtype: torch.dtype | None = None) -> Self:
        """A convolution; its weights become of `dtype`."""
        width, num_inputs, num_taps = conv.weight.shape
        packed = conv.weight.detach().permute(2, 1, 0).to(dtype or conv.weight.dtype).contiguous()
        conv.weight.data = packed.permute(2, 1, 0)
        stride, bias = num_inputs * width, conv.bias.detach()
        return cls(packed, stride, width, bias, num_taps, first, conv.dilation[0], width)

    @classmethod
    def of_transposed(
        cls, conv: nn.ConvTranspose1d, num_context: int = 0, dtype: torch.dtype | None = None
    ) -> Self:
        """A transposed convolution of a stride s, which makes s rows of each.

        Output row s * t + p reads input row t - d by row p + padding + s * d of the module's
        kernel, and zeros where it has no such row. So all p of a d lie one after another, and then
        those of the next d. `num_context`: input rows before the first t.
        """
        _, width, size = conv.weight.shape
        factor, padding = conv.stride[0], int(conv.padding[0])
        earliest, latest = -((padding + factor - 1) // factor), (size - 1 - padding) // factor
        num_taps = latest - earliest + 1
        before = -padding - factor * earliest
        behind = num_taps * factor - before - size
        packed = conv.weight.detach().permute(0, 2, 1).to(dtype or conv.weight.dtype).contiguous()
        if before or behind:
            packed = functional.pad(packed, (0, 0, before, behind))
        conv.weight.data = packed[:, before:][:, :size].permute(0, 2, 1)
        strides, first = (factor * width, num_taps * factor * width), num_context - earliest
        return cls(packed, *strides, conv.bias.detach(), num_taps, first, -1, width, factor)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Wave:
    """A snake's parameters, float32 [C]: x + sin²(alpha * x) * inverse_beta."""

    alpha: torch.Tensor
    inverse_beta: torch.Tensor

    @classmethod
    def of(cls, net: Any) -> Self:
        """That of a module of transformers, which has their logarithms."""
        beta = net.beta.detach().float().exp() + net.no_div_by_zero
        return cls(net.alpha.detach().float().exp(), 1.0 / beta)
