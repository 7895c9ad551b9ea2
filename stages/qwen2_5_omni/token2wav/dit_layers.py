"""The DiT's layers over a list of blocks, as the reference computes them, on any device.

On a CPU each block is a matrix product of its own.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig

from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import (
    COLUMNS,
    NORM_EPS,
    BlockList,
    Role,
    Tables,
)
from omnistage.stages.vocoder.layers.products import takes_fused_kernels


class Layers(Protocol):
    """All layers and the norm behind them."""

    def __call__(self, hidden: torch.Tensor, blocks: BlockList) -> torch.Tensor:
        """Computes new blocks of float32 [blocks, 2, frames, width], which may be overwritten."""


class ExactLayers:
    """Each product in the dtype of its weight, everything else in that of the states."""

    def __init__(self, net: Any, tables: Tables) -> None:
        self._tables = tables
        self._layers = [
            BlockLayer(layer, modulation, Role.of(number, net.config), net.config)
            for number, (layer, modulation) in enumerate(
                zip(net.transformer_blocks, tables.modulations, strict=True)
            )
        ]

    def __call__(self, hidden: torch.Tensor, blocks: BlockList) -> torch.Tensor:
        """[blocks, 2, frames, width] of the new ones."""
        shared = _shared(blocks, self._tables)
        for layer in self._layers:
            hidden = layer(hidden, blocks, shared)
        times = blocks.column(COLUMNS.time)[: len(hidden)]
        scale, shift = self._tables.last[times][:, :, None, None].unbind(1)
        return _norm(hidden) * (1 + scale) + shift


def layers_of(net: Any, tables: Tables) -> Layers:
    """The fused ones for half precision on a GPU, as far as they can; else the exact ones."""
    weight = net.transformer_blocks[0].attn.to_q.weight
    if takes_fused_kernels(weight):
        from omnistage.stages.qwen2_5_omni.token2wav.fused_dit import FusedLayers, is_fusible

        if is_fusible(net.config):
            return FusedLayers(net, tables)
    return ExactLayers(net, tables)


@dataclass(frozen=True, slots=True)
class Shared:
    """The inputs that all layers read of a list.

    `left`, `right`: the neighbours' places (any, where `sees_*` says that there is none). `sees_*`
    [blocks * 2, 1, 1, keys], for both rows of guidance: which frames are there, of the block
    itself, of its left one and itself, of itself and its right one.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    sees_self: torch.Tensor
    sees_left: torch.Tensor
    sees_right: torch.Tensor


class BlockLayer:
    """One layer: attention in blocks and, of some layers, to a neighbour; then its MLP."""

    def __init__(
        self, net: Any, modulation: torch.Tensor, role: Role, config: Qwen2_5OmniDiTConfig
    ) -> None:
        self._attention = net.attn
        self._first, _, _, self._second = net.ff.ff
        self._role = role
        self._num_heads = config.num_attention_heads
        self._dtype = net.attn.to_q.weight.dtype
        self._modulation = modulation

    def __call__(self, hidden: torch.Tensor, blocks: BlockList, shared: Shared) -> torch.Tensor:
        """[blocks, 2, frames, width], of the blocks that are needed further on."""
        count = blocks.counts[self._role.depth]
        times = blocks.column(COLUMNS.time)[: len(hidden)]
        modulation = self._modulation[times][:, :, None, None]
        shift, scale, gate, *_ = modulation.unbind(1)
        attended = self._attend(_norm(hidden) * (1 + scale) + shift, count, shared)
        hidden = hidden[:count] + gate[:count] * attended
        *_, shift, scale, gate = modulation[:count].unbind(1)
        inner = blockwise_linear(_norm(hidden) * (1 + scale) + shift, self._first)
        inner = functional.gelu(inner, approximate="tanh")
        return hidden + gate * blockwise_linear(inner, self._second)

    def _attend(self, hidden: torch.Tensor, count: int, shared: Shared) -> torch.Tensor:
        net = self._attention
        cos, sin = (one[: len(hidden), None] for one in (shared.cos, shared.sin))
        query = self._heads(net.to_q, hidden[:count])
        key, value = (self._heads(one, hidden) for one in (net.to_k, net.to_v))
        _rotate_first_head(query, cos[:count], sin[:count])
        _rotate_first_head(key, cos, sin)
        sees = shared.sees_self
        if self._role.looks_left:
            # A graph computes blocks further than needed: what these look at may be dropped.
            left, sees = shared.left[:count].clamp(max=len(hidden) - 1), shared.sees_left
            key, value = (torch.cat([one[left], one[:count]], 2) for one in (key, value))
        elif self._role.looks_right:
            right, sees = shared.right[:count], shared.sees_right
            key, value = (torch.cat([one[:count], one[right]], 2) for one in (key, value))
        query, key, value = (
            one.flatten(0, 1).transpose(1, 2).to(self._dtype) for one in (query, key, value)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=sees[: 2 * count]
        )
        attended = attended.transpose(1, 2).flatten(2).unflatten(0, (-1, 2)).to(hidden.dtype)
        return blockwise_linear(attended, net.to_out[0])

    def _heads(self, net: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        """[blocks, 2, frames, heads, head_dim]."""
        return blockwise_linear(hidden, net).unflatten(-1, (self._num_heads, -1))


def blockwise_linear(hidden: torch.Tensor, net: nn.Linear) -> torch.Tensor:
    """A linear layer of [blocks, 2, frames, size], computed in the dtype of its weight."""
    rows = hidden.flatten(1, 2).to(net.weight.dtype)
    return blockwise(rows, net.weight, net.bias).unflatten(1, hidden.shape[1:3]).to(hidden.dtype)


def blockwise(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[blocks, rows, size]; on a CPU one product a block, the same for any number of them."""
    if rows.device.type != "cpu":
        return functional.linear(rows, weight, bias)
    weights = weight.t().expand(len(rows), -1, -1)
    return torch.bmm(rows, weights) if bias is None else torch.baddbmm(bias, rows, weights)


def _shared(blocks: BlockList, tables: Tables) -> Shared:
    positions, to_left, to_right, num_frames = (
        blocks.column(place)
        for place in (COLUMNS.position, COLUMNS.left, COLUMNS.right, COLUMNS.num_frames)
    )
    frames = torch.arange(blocks.state.shape[1], device=blocks.table.device)
    is_frame = frames < num_frames[:, None]
    left, right = to_left.clamp(min=0), to_right.clamp(min=0)
    is_left = is_frame[left] & (to_left >= 0)[:, None]
    is_right = is_frame[right] & (to_right >= 0)[:, None]
    return Shared(
        cos=tables.cos[positions],
        sin=tables.sin[positions],
        left=left,
        right=right,
        sees_self=_mask(is_frame),
        sees_left=_mask(torch.cat([is_left, is_frame], 1)),
        sees_right=_mask(torch.cat([is_frame, is_right], 1)),
    )


def _mask(sees: torch.Tensor) -> torch.Tensor:
    return sees[:, None, None].repeat_interleave(2, 0)


def _norm(hidden: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:], eps=NORM_EPS)


def _rotate_first_head(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """The others have no positions. Pairs are neighbours, and come out as two halves."""
    first = heads[..., 0, :]
    even, odd = first[..., 0::2], first[..., 1::2]
    halves = torch.cat([even, odd], -1)
    turned = torch.cat([-odd, even], -1)
    heads[..., 0, :] = halves * cos + turned * sin
