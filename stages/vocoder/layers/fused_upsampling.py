"""The upsampling of a vocoder in half precision on a GPU: seven kernels a pair.

It computes what `upsampling.ExactUpsampling` does, with tensors channels-last and roundings in
other places. A transposed convolution whose outputs read one step each is a product, whose weights
lie as it reads them; the modules' parameters are views of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from omnistage.stages.vocoder.layers.upsampling_kernels import convolve_depthwise
from omnistage.stages.vocoder.state import Region, StateLayout, StreamBatch


@dataclass(frozen=True, slots=True)
class UpsamplingStage:
    """A product [factor * C, C], the taps [taps, C] of a depthwise convolution, and its block."""

    weight: torch.Tensor
    bias: torch.Tensor
    taps: torch.Tensor
    block: Any
    region: Region


class FusedUpsampling:
    """`upsampling.UpsamplingLayers` in half precision on a GPU."""

    def __init__(self, stages: Iterable[Any], layout: StateLayout) -> None:
        self._stages = [_stage(upsampling.conv, block, layout) for upsampling, block in stages]

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps of hidden steps."""
        num_streams, _, width = hidden.shape
        for stage in self._stages:
            block = stage.block
            hidden = functional.linear(hidden, stage.weight, stage.bias)
            hidden = hidden.view(num_streams, -1, width)
            conv, norm = block.dwconv.conv, block.norm
            normal = convolve_depthwise(
                hidden, stage.region.of(batch.rows), stage.taps, conv.bias, norm.weight, norm.bias,
                norm.eps,
            )  # fmt: skip
            branch = block.pwconv2(block.act(block.pwconv1(normal)))
            hidden = torch.addcmul(hidden, branch, block.gamma)
        return hidden.transpose(1, 2)


def is_fusible(stages: Iterable[Any]) -> bool:
    """Returns whether each output of the transposed convolutions reads one step, and widths are
    equal.
    """
    convs: list[nn.ConvTranspose1d] = [upsampling.conv for upsampling, _ in stages]
    return all(
        conv.kernel_size == conv.stride
        and conv.in_channels == conv.out_channels
        and (conv.groups, conv.dilation, conv.padding, conv.output_padding) == (1, (1,), (0,), (0,))
        and conv.bias is not None
        for conv in convs
    )


def _stage(conv: Any, block: Any, layout: StateLayout) -> UpsamplingStage:
    width, _, factor = conv.weight.shape
    weight = conv.weight.detach().permute(2, 1, 0).contiguous()
    conv.weight.data = weight.permute(2, 1, 0)
    depthwise = block.dwconv.conv
    taps = depthwise.weight.detach()[:, 0].t().contiguous()
    depthwise.weight.data = taps.t()[:, None]
    return UpsamplingStage(
        weight=weight.view(factor * width, width),
        bias=conv.bias.detach().repeat(factor),
        taps=taps,
        block=block,
        region=layout.reserve(len(taps) - 1, width),
    )
