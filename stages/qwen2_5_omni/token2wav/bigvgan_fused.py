"""BigVGAN with one kernel for each activation, and one for each convolution with its sums.

It computes what the modules do, channels-last and with roundings in other places. The first and the
last convolution are the modules', in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import nn

from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_kernels import (
    FILTER_SIZE,
    Activation,
    activate,
    convolve,
)
from omnistage.stages.vocoder.layers.products import Product, Wave

MIN_DB, REFERENCE_DB = -115.0, 20.0  # as process_mel_spectrogram of the reference has them


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a residual block: an activation and a convolution, twice."""

    first: Activation
    dilated: Product
    second: Activation
    plain: Product


@dataclass(frozen=True, slots=True)
class UpsamplingLevel:
    """An upsampling, and the residual blocks whose mean is what goes on."""

    upsampling: Product
    blocks: Sequence[Sequence[Unit]]


class FusedBigVGAN:
    """The layers of `model` with matrices of a dtype.

    These lie as the kernels read them, and the modules' parameters become views of them.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        net: Any = model
        self._net, self._dtype = net, dtype
        size = net.num_residual_blocks
        self._levels = [
            UpsamplingLevel(
                Product.of_transposed(upsample, dtype=dtype),
                [_units(block, dtype) for block in net.resblocks[number * size :][:size]],
            )
            for number, (upsample,) in enumerate(net.ups)
        ]
        self._last = activation_of(net.activation_post)

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        """Samples float32 [B, samples] in -1..1 of mel frames [B, n, mel]."""
        hidden = self._net.conv_pre(loudness(mel.float()).mT).mT.to(self._dtype).contiguous()
        for level in self._levels:
            hidden = _mean_of_blocks(convolve(hidden, level.upsampling), level.blocks)
        activated = activate(hidden, self._last, torch.float32)
        samples: torch.Tensor = self._net.conv_post(activated.mT)
        return samples[:, 0].clamp(-1, 1)


def is_fusible(model: nn.Module) -> bool:
    """Returns whether its filters and its upsamplings are of the kinds that the kernels compute."""
    net: Any = model
    activations = [net.activation_post]
    for block in net.resblocks:
        activations += block.activations
    filters = [part for one in activations for part in (one.upsample, one.downsample)]
    return all((one.stride, one.kernel_size) == (2, FILTER_SIZE) for one in filters) and all(
        conv.kernel_size[0] - conv.stride[0] == 2 * conv.padding[0] and conv.output_padding == (0,)
        for (conv,) in net.ups
    )


def loudness(mel: torch.Tensor) -> torch.Tensor:
    """In -1..1, of a spectrogram of natural logarithms: process_mel_spectrogram of the reference.

    That takes logarithms of exponentials, and copies a bound to the device, which no graph can.
    """
    decibel = (mel * (20 / log(10))).clamp(min=MIN_DB) - REFERENCE_DB
    return ((decibel - MIN_DB) * (2 / -MIN_DB) - 1).clamp(-1, 1)


def _mean_of_blocks(hidden: torch.Tensor, blocks: Sequence[Sequence[Unit]]) -> torch.Tensor:
    """The last convolution of each block adds the blocks before it; that of the last divides."""
    total: torch.Tensor | None = None
    for number, (*units, last) in enumerate(blocks, 1):
        block = hidden
        for unit in units:
            block = convolve(_inner(block, unit), unit.plain, block)
        scale = 1 / len(blocks) if number == len(blocks) else 1.0
        total = convolve(_inner(block, last), last.plain, block, total, scale)
    assert total is not None
    return total


def _inner(hidden: torch.Tensor, unit: Unit) -> torch.Tensor:
    return activate(convolve(activate(hidden, unit.first), unit.dilated), unit.second)


def _units(block: Any, dtype: torch.dtype) -> list[Unit]:
    activations = [activation_of(one) for one in block.activations]
    return [
        Unit(first, _convolution(dilated, dtype), second, _convolution(plain, dtype))
        for first, second, dilated, plain in zip(
            activations[::2], activations[1::2], block.convs1, block.convs2, strict=True
        )
    ]


def activation_of(net: Any) -> Activation:
    """That of an anti-aliased module of transformers."""
    filters = torch.cat([net.upsample.filter.flatten(), net.downsample.filter.flatten()]).float()
    return Activation(Wave.of(net.act), filters)


def _convolution(conv: nn.Conv1d, dtype: torch.dtype) -> Product:
    return Product.of(conv, -int(conv.padding[0]), dtype)
