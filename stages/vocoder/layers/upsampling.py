"""The part of a vocoder between its transformer and its sound: more steps of each.

Pairs of a transposed convolution, each of whose outputs reads one step, and a ConvNeXt block:
`upsample` of the vocoders of Qwen3-Omni and Qwen3-TTS, as transformers has its modules.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn

from omnistage.stages.vocoder.layers.convolutions import ConvNeXtBlock
from omnistage.stages.vocoder.layers.products import takes_fused_kernels
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


class UpsamplingLayers(Protocol):
    """All pairs, one after another."""

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps [B, C, n * factor] of hidden steps [B, n, C]."""


class ExactUpsampling:
    """The layers of the reference, in the weights' own dtype, on any device."""

    def __init__(self, stages: Iterable[Any], layout: StateLayout) -> None:
        self._stages = [
            (upsampling.conv, ConvNeXtBlock(block, layout)) for upsampling, block in stages
        ]

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps of hidden steps."""
        hidden = hidden.transpose(1, 2)
        for upsample, block in self._stages:
            hidden = block(upsample(hidden), batch)
        return hidden


def upsampling_layers(stages: nn.ModuleList, layout: StateLayout) -> UpsamplingLayers:
    """The fused ones for half precision on a GPU, if possible; else the exact."""
    weight = next(stages.parameters(), None)
    if weight is not None and takes_fused_kernels(weight):
        from omnistage.stages.vocoder.layers.fused_upsampling import FusedUpsampling, is_fusible

        if is_fusible(stages):
            return FusedUpsampling(stages, layout)
    return ExactUpsampling(stages, layout)
