"""The transformer of a vocoder in half precision on a GPU: eight kernels a layer.

It computes what `transformer.ExactTransformer` does, with roundings in other places: states stay
float32, and between products everything is of the weights' dtype. Queries, keys and values are one
product, gates and values of the network another, whose weights lie in one piece each; the modules'
parameters are views of it. The windows of all layers move on together, when all have attended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from omnistage.stages.vocoder.layers.attention_kernels import MIN_HALF, Heads, attend, move_on
from omnistage.stages.vocoder.layers.products import packed
from omnistage.stages.vocoder.layers.transformer_kernels import begin, end_branch, gate, rotations
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


@dataclass(frozen=True, slots=True)
class FusedTransformerLayer:
    """Weights of products [outputs, inputs], of norms and of scales [width]."""

    inputs: torch.Tensor
    output: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    norm: torch.Tensor
    second_norm: torch.Tensor
    scale: torch.Tensor
    second_scale: torch.Tensor


class FusedTransformer:
    """`transformer.TransformerLayers` in half precision on a GPU."""

    def __init__(self, net: Any, layout: StateLayout) -> None:
        config, first = net.config, net.layers[0].self_attn
        heads = Heads(config.num_attention_heads, config.num_key_value_heads, first.head_dim)
        num_past = config.sliding_window - 1
        self._heads = heads
        self._layers = [_layer(layer) for layer in net.layers]
        self._norm: torch.Tensor = net.norm.weight.detach()
        self._epsilon: float = net.norm.variance_epsilon
        self._region = layout.reserve(len(self._layers), 2, heads.keys, num_past, heads.size)
        exact = type(net.rotary_emb)(config)  # the module's own are of the weights' dtype
        self._frequencies = exact.inv_freq.to(self._norm.device, torch.float32)
        self._scaling = float(exact.attention_scaling)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Hidden steps of the same shape."""
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        past, epsilon = self._region.of(batch.rows), self._epsilon
        turns = rotations(batch.positions, self._frequencies, hidden.shape[1], self._scaling)
        first, *others = self._layers
        projected = rows.new_empty(len(self._layers), len(rows), len(first.inputs))
        states, normal = begin(rows, first.norm, epsilon)
        for number, layer in enumerate(self._layers):
            torch.mm(normal, layer.inputs.t(), out=projected[number])
            attended = attend(
                projected[number], turns, past[:, number], batch.positions, self._heads
            )
            branch = functional.linear(attended, layer.output)
            normal = end_branch(states, branch, layer.scale, layer.second_norm, epsilon)
            branch = functional.linear(gate(functional.linear(normal, layer.first)), layer.second)
            is_last = number == len(others)
            norm = self._norm if is_last else others[number].norm
            normal = end_branch(
                states, branch, layer.second_scale, norm, epsilon, keeps_states=not is_last
            )
        move_on(projected, turns, past, self._heads)
        return normal.view(hidden.shape)


def is_fusible(net: Any) -> bool:
    """Returns whether the kernels take its heads, its rotations, its activation and its
    products.
    """
    config = net.config
    if not len(net.layers) or config.hidden_act != "silu" or net.rotary_emb.rope_type != "default":
        return False
    size = net.layers[0].self_attn.head_dim
    attentions = [layer.self_attn for layer in net.layers]
    norms = [one for one in net.modules() if hasattr(one, "variance_epsilon")]
    linears = [one for one in net.layers.modules() if isinstance(one, nn.Linear)]
    return (
        size >= 2 * MIN_HALF
        and size & (size - 1) == 0
        and config.sliding_window > 1
        and all(one.bias is None for one in linears)
        and all(one.variance_epsilon == net.norm.variance_epsilon for one in norms)
        and all(_is_nothing(one, name) for one in attentions for name in ("q_norm", "k_norm"))
    )


def _is_nothing(attention: object, name: str) -> bool:
    """Returns whether a norm of heads is none."""
    return isinstance(getattr(attention, name, nn.Identity()), nn.Identity)


def _layer(net: Any) -> FusedTransformerLayer:
    attention, network = net.self_attn, net.mlp
    inputs: Iterable[Any] = attention.q_proj, attention.k_proj, attention.v_proj
    return FusedTransformerLayer(
        inputs=packed([one.weight for one in inputs]),
        output=attention.o_proj.weight.detach(),
        first=packed([network.gate_proj.weight, network.up_proj.weight]),
        second=network.down_proj.weight.detach(),
        norm=net.input_layernorm.weight.detach(),
        second_norm=net.post_attention_layernorm.weight.detach(),
        scale=net.self_attn_layer_scale.scale.detach(),
        second_scale=net.mlp_layer_scale.scale.detach(),
    )
