"""A transformer with a sliding window that is continued from chunk to chunk.

It runs the modules (`net`) that transformers has for Qwen3-Omni's vocoder.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from omnistage.stages.vocoder.layers.products import takes_fused_kernels
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


@dataclass(frozen=True, slots=True)
class WindowMask:
    """The keys that a chunk's queries see, and their rotations."""

    allowed: torch.Tensor  # bool [B, 1, n, window - 1 + n]
    cos: torch.Tensor
    sin: torch.Tensor


class WindowAttention:
    """Carries the keys and values of the window - 1 frames before the chunk."""

    def __init__(self, net: Any, layout: StateLayout) -> None:
        self._net = net
        self._num_heads = net.config.num_attention_heads
        self._num_key_heads = net.config.num_key_value_heads
        num_past = net.config.sliding_window - 1
        self._region = layout.reserve(2, self._num_key_heads, num_past, net.head_dim)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch, mask: WindowMask) -> torch.Tensor:
        net, num_new = self._net, hidden.shape[1]
        queries = self._split(net.q_proj(hidden), self._num_heads)
        keys = self._split(net.k_proj(hidden), self._num_key_heads)
        values = self._split(net.v_proj(hidden), self._num_key_heads)
        queries, keys = apply_rotary_pos_emb(queries, keys, mask.cos, mask.sin)
        past = self._region.of(batch.rows)
        cache = torch.cat([past, torch.stack([keys, values], dim=1)], dim=3)
        past.copy_(cache[:, :, :, num_new:])
        output = functional.scaled_dot_product_attention(
            queries,
            cache[:, 0],
            cache[:, 1],
            attn_mask=mask.allowed,
            scale=net.scaling,
            enable_gqa=self._num_heads != self._num_key_heads,
        )
        projected: torch.Tensor = net.o_proj(output.transpose(1, 2).flatten(2))
        return projected

    def _split(self, projected: torch.Tensor, num_heads: int) -> torch.Tensor:
        return projected.view(*projected.shape[:2], num_heads, -1).transpose(1, 2)


class TransformerLayer:
    """Attention and network, each on a scaled residual branch."""

    def __init__(self, net: Any, layout: StateLayout) -> None:
        self._net = net
        self._attention = WindowAttention(net.self_attn, layout)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch, mask: WindowMask) -> torch.Tensor:
        net = self._net
        output = self._attention(net.input_layernorm(hidden), batch, mask)
        hidden = hidden + net.self_attn_layer_scale(output)
        output = net.mlp(net.post_attention_layernorm(hidden))
        layer_output: torch.Tensor = hidden + net.mlp_layer_scale(output)
        return layer_output


class TransformerLayers(Protocol):
    """All layers and the norm behind them."""

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps [B, n, width] of hidden steps of the same shape."""


class ExactTransformer:
    """The layers of the reference, in the weights' own dtype, on any device.

    Every layer sees the same window, so the mask and the rotations are made once.
    """

    def __init__(self, net: Any, layout: StateLayout) -> None:
        self._net = net
        self._window: int = net.config.sliding_window
        layers: Iterable[Any] = net.layers
        self._layers = [TransformerLayer(layer, layout) for layer in layers]

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps of the same shape."""
        mask = self._mask(hidden, batch.positions)
        for layer in self._layers:
            hidden = layer(hidden, batch, mask)
        output: torch.Tensor = self._net.norm(hidden)
        return output

    def _mask(self, hidden: torch.Tensor, positions: torch.Tensor) -> WindowMask:
        num_new, num_past = hidden.shape[1], self._window - 1
        queries = torch.arange(num_new, device=hidden.device)
        keys = torch.arange(num_past + num_new, device=hidden.device)
        distance = queries[:, None] + num_past - keys
        in_window = (distance >= 0) & (distance < self._window)
        in_stream = keys >= num_past - positions[:, None]
        cos, sin = self._net.rotary_emb(hidden, positions[:, None] + queries)
        return WindowMask((in_window & in_stream[:, None])[:, None], cos, sin)


def window_transformer(net: Any, layout: StateLayout) -> TransformerLayers:
    """The fused one for half precision on a GPU, if possible; else the exact one."""
    if takes_fused_kernels(next(net.parameters())):
        from omnistage.stages.vocoder.layers.fused_transformer import FusedTransformer, is_fusible

        if is_fusible(net):
            return FusedTransformer(net, layout)
    return ExactTransformer(net, layout)
