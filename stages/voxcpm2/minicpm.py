"""MiniCPM's layers in plain torch, for the few tokens of a patch, which all see each other."""

import torch
from torch import nn
from torch.nn import functional

from omnistage.stages.voxcpm2.settings import LayersConfig


def rotations(config: LayersConfig, num_positions: int) -> torch.Tensor:
    """Cosines and sines of the leading positions: float32 [2, num_positions, head_dim]."""
    rope = config.rope_scaling
    longest, original = config.max_position_embeddings, rope.original_max_position_embeddings
    factors = torch.tensor(rope.long_factor if longest > original else rope.short_factor)
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    positions = torch.arange(num_positions).float()
    angles = torch.outer(positions, 1.0 / factors) * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    # The reference's attention scale of a longer context.
    log = torch.tensor
    scale = torch.sqrt(1 + log(longest / original).log() / log(float(original)).log())
    return torch.stack([angles.cos(), angles.sin()]) * scale


def rotated(heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate heads [..., head_dim] by [2, ..., head_dim], in float32."""
    cos, sin = rotation
    exact = heads.float()
    first, second = exact.chunk(2, dim=-1)
    return (exact * cos + torch.cat([-second, first], dim=-1) * sin).to(heads.dtype)


class LocalNorm(nn.Module):
    """RMS norm that rounds before it scales."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self._epsilon = config.rms_norm_eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalize the last dimension."""
        variance = hidden.float().pow(2).mean(-1, keepdim=True)
        return (hidden * torch.rsqrt(variance + self._epsilon)).to(hidden.dtype) * self.weight


class LocalAttention(nn.Module):
    """Every token of a patch sees all."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        size, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(size, queries, bias=False)
        self.k_proj = nn.Linear(size, keys, bias=False)
        self.v_proj = nn.Linear(size, keys, bias=False)
        self.o_proj = nn.Linear(queries, size, bias=False)

    def forward(self, hidden: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """From [B, n, hidden] and rotations [2, n, head_dim]."""
        queries, keys, values = (
            layer(hidden).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = rotated(queries, rotation), rotated(keys, rotation)
        seen = functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        output: torch.Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return output


class LocalMlp(nn.Module):
    """A gated network."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Token by token."""
        gated = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        output: torch.Tensor = self.down_proj(gated)
        return output


class LocalLayer(nn.Module):
    """Attention and a network, each of which adds to its input."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self._scale = config.branch_scale
        self.self_attn = LocalAttention(config)
        self.mlp = LocalMlp(config)
        self.input_layernorm = LocalNorm(config)
        self.post_attention_layernorm = LocalNorm(config)

    def forward(self, hidden: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """From [B, n, hidden] to the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation) * self._scale
        return hidden + self.mlp(self.post_attention_layernorm(hidden)) * self._scale


class LocalLayers(nn.Module):
    """A stack of layers for sequences of one length."""

    rotation: torch.Tensor

    def __init__(self, config: LayersConfig, num_tokens: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LocalLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LocalNorm(config)
        rotation = rotations(config, num_tokens)
        self.register_buffer("rotation", rotation.to(torch.get_default_device()), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From [B, num_tokens, hidden] to the same shape."""
        for layer in self.layers:
            hidden = layer(hidden, self.rotation)
        output: torch.Tensor = self.norm(hidden)
        return output


class PatchEncoder(nn.Module):
    """A patch of latents as one row."""

    def __init__(self, config: LayersConfig, patch_size: int, latent_size: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, config.hidden_size))
        self.in_proj = nn.Linear(latent_size, config.hidden_size)
        self.encoder = LocalLayers(config, 1 + patch_size)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """From patches [B, patch, latent] to rows [B, hidden]."""
        special = self.special_token[0].expand(len(patches), 1, -1)
        encoded = self.encoder(torch.cat([special, self.in_proj(patches)], dim=1))
        return encoded[:, 0]
