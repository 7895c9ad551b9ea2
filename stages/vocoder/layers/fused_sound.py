"""The convolutions of a vocoder with the snakes between them, one kernel a convolution.

It computes what `sound.ExactSound` does, with tensors channels-last and roundings in other places.
A convolution's kernel writes its output behind room for the context of the next one, so nothing is
joined or padded; the weights lie as the kernels read them, and the modules' parameters are views of
them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from omnistage.stages.vocoder.layers.products import Product, Wave
from omnistage.stages.vocoder.layers.sound_kernels import MIN_WIDTH, carry, convolve, to_samples
from omnistage.stages.vocoder.state import Region, StateLayout, StreamBatch


@dataclass(frozen=True, slots=True)
class SoundLayer:
    """A convolution, what it reads of the chunk before, and the snake behind it.

    `num_muted`: leading rows of a new stream that it must see as zeros. `adds`: it adds what the
    last layer that `keeps` has kept.
    """

    product: Product
    num_context: int
    region: Region | None
    num_muted: int = 0
    wave: Wave | None = None
    adds: bool = False
    keeps: bool = False


class FusedSound:
    """`sound.SoundLayers` in half precision on a GPU."""

    def __init__(self, decoder: Iterable[Any], layout: StateLayout) -> None:
        first, *blocks, snake, last = decoder
        self._layout = layout
        waves = [block.block[0] for block in blocks] + [snake]
        self._layers = [self._convolution(first, wave=waves[0])]
        self.num_muted = 0
        for block, wave in zip(blocks, waves[1:], strict=True):
            self._add_block(block.block, wave)
        self._layers.append(self._convolution(last, self.num_muted))

    def _add_block(self, block: Iterable[Any], wave: Any) -> None:
        _, upsampling, *units = block
        self._layers.append(self._upsampling(upsampling, units[0].act1))
        self.num_muted = self.num_muted * upsampling.conv.stride[0] + upsampling.left_pad
        for unit, following in zip(units, [*units[1:], None], strict=True):
            after = wave if following is None else following.act1
            self._layers += [
                self._convolution(unit.conv1, self.num_muted, unit.act2),
                self._convolution(unit.conv2, wave=after, adds=True, keeps=following is not None),
            ]

    def _convolution(
        self, net: Any, num_muted: int = 0, wave: Any = None, **role: bool
    ) -> SoundLayer:
        product, num_inputs = Product.of(net.conv), net.conv.in_channels
        region = self._layout.reserve(net.padding, num_inputs) if net.padding else None
        following = None if wave is None else Wave.of(wave)
        return SoundLayer(product, net.padding, region, num_muted, following, **role)

    def _upsampling(self, net: Any, wave: Any) -> SoundLayer:
        """A transposed convolution over two steps: it carries the one before."""
        product = Product.of_transposed(net.conv, num_context=1)
        region = self._layout.reserve(1, net.conv.in_channels)
        return SoundLayer(product, 1, region, wave=Wave.of(wave), keeps=True)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Samples of hidden steps."""
        first, *others = self._layers
        num_streams, num_inputs, length = hidden.shape
        padded = hidden.new_empty(num_streams, first.num_context + length, num_inputs)
        padded[:, first.num_context :] = hidden.transpose(1, 2)
        kept: torch.Tensor | None = None
        for layer, following in zip(self._layers, others, strict=False):
            _continue(layer, padded, batch)
            assert layer.wave is not None
            padded, raw = convolve(
                padded, layer.product, layer.wave, batch.started, layer.num_context,
                following.num_context, following.num_muted, kept if layer.adds else None,
                has_raw=layer.keeps,
            )  # fmt: skip
            kept = raw if layer.keeps else kept
        last = self._layers[-1]
        _continue(last, padded, batch)
        return to_samples(padded, last.product, last.num_context)


def is_fusible(decoder: nn.ModuleList) -> bool:
    """Returns whether every width is one that the kernels take."""
    convs = [one for one in decoder.modules() if isinstance(one, nn.Conv1d)]
    return all(conv.in_channels % MIN_WIDTH == 0 for conv in convs)


def _continue(layer: SoundLayer, padded: torch.Tensor, batch: StreamBatch) -> None:
    """Put the stream's context before its rows, and keep that of the next chunk."""
    if layer.region is not None:
        carry(padded, layer.region.of(batch.rows))
