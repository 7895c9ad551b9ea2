"""BAGEL's language model: each layer twice, for what is read and for what is drawn.

Tokens of both kinds meet in attention, which they share. Weights have the published names but for
the place of `moe_gen` (`checkpoint/weights.py`).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

# Of a layer's number and the queries, keys and values [tokens, heads, size] of all its tokens,
# those that are read first: what they attend to [tokens, heads * size].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class ExpertLayer(nn.Module):
    """The weights of one layer for one kind of token."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        kv_size = config.num_key_value_heads * self.head_size
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, kv_size)
        self.v_proj = nn.Linear(config.hidden_size, kv_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_size, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_size, config.rms_norm_eps)
        self.mlp = Qwen2MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def project(self, hidden: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [tokens, heads, size], the first two rotated."""
        hidden = self.input_layernorm(hidden)
        queries, keys, values = (
            layer(hidden).unflatten(-1, (-1, self.head_size))
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return (
            rotated(self.q_norm(queries), rotation),
            rotated(self.k_norm(keys), rotation),
            values,
        )

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output of its input and of what its tokens attended to."""
        hidden = hidden + self.o_proj(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class MixtureLayer(nn.Module):
    """A layer with weights for tokens that are read, and others for those that are drawn."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.und = ExpertLayer(config)
        self.gen = ExpertLayer(config)

    def forward(
        self, read: Tensor, drawn: Tensor | None, rotation: Tensor, attend: Attend, number: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the tokens [n, hidden_size] of both kinds; `rotation` is that of all of them."""
        if drawn is None:
            return self.und.finish(read, attend(number, *self.und.project(read, rotation))), None
        sizes = [len(read), len(drawn)]
        own, other = rotation.split(sizes, dim=1)
        parts = zip(self.und.project(read, own), self.gen.project(drawn, other), strict=True)
        attended = attend(number, *map(torch.cat, parts))
        mine, its = attended.split(sizes)
        return self.und.finish(read, mine), self.gen.finish(drawn, its)


def run_layers(
    layers: nn.ModuleList, read: Tensor, drawn: Tensor | None, rotation: Tensor, attend: Attend
) -> tuple[Tensor, Tensor | None]:
    """Return tokens after all layers."""
    for number, layer in enumerate(layers):
        read, drawn = layer(read, drawn, rotation, attend, number)
    return read, drawn


class Rotary(nn.Module):
    """Rotary position embeddings: cosines and sines of int64 positions [tokens]."""

    def __init__(self, config: Qwen2Config, theta: float) -> None:
        super().__init__()
        self._size = config.hidden_size // config.num_attention_heads
        self._theta = theta

    def forward(self, positions: Tensor) -> Tensor:
        """Return float32 [2, tokens, 1, head_size]: cosines, then sines."""
        steps = torch.arange(0, self._size, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() * self._theta ** -(steps / self._size)
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return torch.stack([angles.cos(), angles.sin()])


def rotated(heads: Tensor, rotation: Tensor) -> Tensor:
    """Return heads [tokens, heads, size] rotated, in their dtype."""
    cosines, sines = rotation
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (heads.float() * cosines + turned * sines).to(heads.dtype)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention of [batch, tokens, heads, size], in the same shape.

    `mask`: bool [queries, keys]; None: all see all.
    """
    heads = [one.transpose(1, 2) for one in (queries, keys, values)]
    made = nn.functional.scaled_dot_product_attention(
        heads[0], heads[1], heads[2], attn_mask=mask, enable_gqa=True
    )
    return made.transpose(1, 2)
