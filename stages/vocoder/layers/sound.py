"""The last part of a vocoder: convolutions that turn hidden steps into samples.

A first convolution, blocks that upsample, a snake and a convolution to one channel: `decoder` of
the vocoders of Qwen3-Omni and Qwen3-TTS, as transformers has its modules.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn

from omnistage.stages.vocoder.layers.convolutions import CausalConvolution, DecoderBlock, Snake
from omnistage.stages.vocoder.layers.products import takes_fused_kernels
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


class SoundLayers(Protocol):
    """`num_muted`: the leading samples of a stream that are no sound."""

    num_muted: int

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Samples float32 [B, n * factor] in -1..1 of hidden steps [B, C, n]."""


class ExactSound:
    """The layers of the reference, in the weights' own dtype, on any device."""

    def __init__(self, decoder: Iterable[Any], layout: StateLayout) -> None:
        first, *blocks, snake, last = decoder
        self._first = CausalConvolution(first, layout)
        self._blocks: list[DecoderBlock] = []
        self.num_muted = 0
        for block in blocks:
            self._blocks.append(DecoderBlock(block, layout, self.num_muted))
            self.num_muted = self._blocks[-1].num_muted
        self._snake = Snake(snake)
        self._last = CausalConvolution(last, layout, self.num_muted)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Samples of hidden steps."""
        hidden = self._first(hidden, batch)
        for block in self._blocks:
            hidden = block(hidden, batch)
        hidden = self._last(self._snake(hidden), batch)
        return hidden[:, 0].clamp(-1, 1).float()


def sound_layers(decoder: nn.ModuleList, layout: StateLayout) -> SoundLayers:
    """The fused ones for half precision on a GPU, as far as they can; else the exact ones."""
    weight = next(decoder.parameters())
    if takes_fused_kernels(weight):
        from omnistage.stages.vocoder.layers.fused_sound import FusedSound, is_fusible

        if is_fusible(decoder):
            return FusedSound(decoder, layout)
    return ExactSound(decoder, layout)
