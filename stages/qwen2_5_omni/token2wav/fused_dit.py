"""The DiT's layers in half precision on a GPU: eight kernels each.

It computes what `dit_layers.ExactLayers` does, with roundings in other places: states stay float32,
and between products everything is of the weights' dtype. Queries, keys and values are one product,
whose weight lies in one piece; the modules' parameters are views of it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig

from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import COLUMNS, BlockList, Role, Tables
from omnistage.stages.qwen2_5_omni.token2wav.dit_kernels import (
    MIN_SIZE,
    Branch,
    Norm,
    attend,
    modulate,
)
from omnistage.stages.vocoder.layers.products import packed


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """Products, which neighbour it looks at, and its modulations.

    `depth`: how far back blocks are needed behind it. `norm` and `gate` are the attention's.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    out: nn.Linear
    first: nn.Linear
    second: nn.Linear
    neighbour: int | None
    depth: int
    norm: Norm
    gate: torch.Tensor
    second_norm: Norm
    second_gate: torch.Tensor


class FusedLayers:
    """`dit_layers.Layers` whose weights are in half precision on a GPU."""

    def __init__(self, net: Any, tables: Tables) -> None:
        self._tables = tables
        self._num_heads: int = net.config.num_attention_heads
        self._layers = [
            _layer(layer, modulation, Role.of(number, net.config))
            for number, (layer, modulation) in enumerate(
                zip(net.transformer_blocks, tables.modulations, strict=True)
            )
        ]
        self._last = Norm(*tables.last.unbind(1))
        self._dtype = self._layers[0].weight.dtype

    def __call__(self, hidden: torch.Tensor, blocks: BlockList) -> torch.Tensor:
        """[blocks, 2, frames, width] of the new ones."""
        shape, table = hidden.shape[1:], blocks.table
        num_rows = shape[:2].numel()  # of a block
        rows = hidden.flatten(0, 2)
        first, *others = self._layers
        normal = modulate(rows, table, num_rows, first.norm, self._dtype)
        for layer, following in zip(self._layers, [*others, None], strict=True):
            count = blocks.counts[layer.depth]
            rows = rows[: count * num_rows]
            projected = functional.linear(normal, layer.weight, layer.bias)
            attended = attend(
                projected, self._num_heads, count, table, self._tables.cos, self._tables.sin,
                layer.neighbour,
            )  # fmt: skip
            branch = Branch(layer.out(attended), layer.gate)
            normal = modulate(rows, table, num_rows, layer.second_norm, self._dtype, branch)
            inner = functional.gelu(layer.first(normal), approximate="tanh")
            branch = Branch(layer.second(inner), layer.second_gate)
            if following is not None:
                normal = modulate(rows, table, num_rows, following.norm, self._dtype, branch)
        last = modulate(rows, table, num_rows, self._last, rows.dtype, branch, keeps_hidden=False)
        return last.view(-1, *shape)


def is_fusible(config: Qwen2_5OmniDiTConfig) -> bool:
    """Returns whether a head is of a size that the kernels take."""
    size = config.head_dim
    return size >= MIN_SIZE and size & (size - 1) == 0


def _layer(net: Any, modulation: torch.Tensor, role: Role) -> FusedLayer:
    attention, (first, _, _, second) = net.attn, net.ff.ff
    inputs = attention.to_q, attention.to_k, attention.to_v
    shift, scale, gate, second_shift, second_scale, second_gate = modulation.unbind(1)
    return FusedLayer(
        weight=packed([one.weight for one in inputs]),
        bias=packed([one.bias for one in inputs]),
        out=attention.to_out[0],
        first=first,
        second=second,
        neighbour=_neighbour(role),
        depth=role.depth,
        norm=Norm(scale, shift),
        gate=gate,
        second_norm=Norm(second_scale, second_shift),
        second_gate=second_gate,
    )


def _neighbour(role: Role) -> int | None:
    if role.looks_left:
        return COLUMNS.left
    return COLUMNS.right if role.looks_right else None
