"""States of an image's ids as a fixed number of tokens of the denoiser.

Math: SimpleQFormerImageEmbedder of the published code.
"""

import torch
from diffusers import ModelMixin
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers.transformer_lumina2 import LuminaFeedForward
from torch import nn

MULTIPLE = 256  # of what a network is wide


class QueryLayer(nn.Module):
    """Queries see each other, then the states."""

    def __init__(self, size: int, num_heads: int, eps: float) -> None:
        super().__init__()
        self.ln_q1, self.ln_q2, self.ln_ffn = (RMSNorm(size, eps=eps) for _ in range(3))
        self.self_attn, self.cross_attn = (
            nn.MultiheadAttention(size, num_heads, batch_first=True) for _ in range(2)
        )
        self.ffn = LuminaFeedForward(size, 4 * size, MULTIPLE)

    def forward(self, queries: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return queries [batch, m, size] that saw `states` [batch, n, size]."""
        own = self.ln_q1(queries)
        queries = queries + self.self_attn(own, own, own, need_weights=False)[0]
        seen = self.cross_attn(self.ln_q2(queries), states, states, need_weights=False)
        queries = queries + seen[0]
        output: torch.Tensor = queries + self.ffn(self.ln_ffn(queries))
        return output


class ImageStates(ModelMixin):
    """Learned queries that read an image's states."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_queries: int = 128,
        num_layers: int = 2,
        num_heads: int | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        num_heads = num_heads or max(1, hidden_size // 128)
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of {num_heads} heads")
        self.input_proj = nn.Sequential(
            RMSNorm(input_size, eps=norm_eps), nn.Linear(input_size, hidden_size)
        )
        self.query = nn.Parameter(torch.zeros(1, num_queries, hidden_size))
        self.layers = nn.ModuleList(
            QueryLayer(hidden_size, num_heads, norm_eps) for _ in range(num_layers)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return tokens [batch, queries, hidden] of states [batch, n, size]."""
        read = self.input_proj(states)
        queries = self.query.expand(len(states), -1, -1)
        for layer in self.layers:
            queries = layer(queries, read)
        return queries
