"""Convolutions that are continued from one chunk to the next.

A causal convolution pads zeros on the left: here it finds the last inputs of the chunk before, and
zeros in a new stream. A transposed convolution that is cut on both sides looks one input step
ahead, so it gives a step's output one step late; what it gives in a new stream before its first
true output is no sound. Layers further on must see zeros there (`num_muted` leading steps of a
first chunk). One that is cut on the right alone gives each step's output at once.

Each class here runs one of the modules (`net`) that transformers has for Qwen3-Omni's vocoder,
whose names vary between its versions.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from omnistage.stages.vocoder.state import StateLayout, StreamBatch


class CausalConvolution:
    """Carries the inputs that the kernel still reaches back to."""

    def __init__(self, net: Any, layout: StateLayout, num_muted: int = 0) -> None:
        self._conv: nn.Conv1d = net.conv
        self._num_muted = num_muted
        self._num_context = net.padding
        self._region = layout.reserve(net.conv.in_channels, net.padding)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        context = self._region.of(batch.rows)
        padded = torch.cat([context, hidden], dim=-1)
        padded.narrow(-1, self._num_context, self._num_muted).mul_(batch.started)
        context.copy_(padded[..., hidden.shape[-1] :])
        output: torch.Tensor = self._conv(padded)
        return output


class Upsampling:
    """A transposed convolution over two input steps: carries the step before."""

    def __init__(self, net: Any, layout: StateLayout, num_muted: int) -> None:
        self._conv: nn.ConvTranspose1d = net.conv
        self._factor: int = net.conv.stride[0]
        if net.conv.kernel_size[0] != 2 * self._factor:
            raise ValueError("a decoder block must upsample with a kernel of twice its stride")
        if net.left_pad not in (0, self._factor):
            raise ValueError("a decoder block must cut a whole input step on the left, or nothing")
        self._region = layout.reserve(net.conv.in_channels, 1)
        self.num_muted = num_muted * self._factor + net.left_pad

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        context = self._region.of(batch.rows)
        padded = torch.cat([context, hidden], dim=-1)
        context.copy_(hidden[..., -1:])
        output: torch.Tensor = self._conv(padded)
        return output[..., self._factor : -self._factor]


class Snake:
    """x + sin²(alpha * x) / beta, with the exponentials of the learnt parameters taken once."""

    def __init__(self, net: Any) -> None:
        self._alpha = net.alpha.detach().exp()[:, None]
        self._inverse_beta = 1.0 / (net.beta.detach().exp() + net.no_div_by_zero)[:, None]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        wave = (hidden * self._alpha).sin_().square_()
        return torch.addcmul(hidden, wave, self._inverse_beta)


class ConvNeXtBlock:
    """A causal depthwise convolution and a pointwise network."""

    def __init__(self, net: Any, layout: StateLayout) -> None:
        self._net = net
        self._convolution = CausalConvolution(net.dwconv, layout)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        net = self._net
        output = net.norm(self._convolution(hidden, batch).transpose(1, 2))
        branch: torch.Tensor = net.gamma * net.pwconv2(net.act(net.pwconv1(output)))
        return hidden + branch.transpose(1, 2)


class ResidualUnit:
    """A dilated causal convolution and a pointwise one, each behind a snake."""

    def __init__(self, net: Any, layout: StateLayout, num_muted: int) -> None:
        self._snakes = Snake(net.act1), Snake(net.act2)
        self._dilated = CausalConvolution(net.conv1, layout, num_muted)
        self._pointwise: nn.Conv1d = net.conv2.conv

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        first, second = self._snakes
        branch: torch.Tensor = self._pointwise(second(self._dilated(first(hidden), batch)))
        return hidden + branch


class DecoderBlock:
    """Upsamples, then three residual units."""

    def __init__(self, net: Any, layout: StateLayout, num_muted: int) -> None:
        block: Iterable[Any] = net.block
        snake, upsampling, *units = block
        self._snake = Snake(snake)
        self._upsampling = Upsampling(upsampling, layout, num_muted)
        self.num_muted = self._upsampling.num_muted
        self._units = [ResidualUnit(unit, layout, self.num_muted) for unit in units]

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        hidden = self._upsampling(self._snake(hidden), batch)
        for unit in self._units:
            hidden = unit(hidden, batch)
        return hidden
