"""Qwen3's layers over pairs: every token is there twice, with its prompt and without.

Both halves of a pair have the same slots of vLLM's cache, as heads beside each other, so they are
in one step, begin, end and wait together, and one id is drawn of both. A key of a token that only
the first half reads is out of reach for the second's queries: a number beside a head says so.
Math: Qwen3-VL's text model in MammothModa2, whose positions are plain for a text.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.llama import LlamaMLP

PAIR = 2
# Their product is what a score loses that is out of reach; each fits a cache of 8 bits.
REACH, AWAY = 64.0, -400.0


class PairAttention(nn.Module):
    """Attention of both halves, each over its own keys."""

    def __init__(self, config: Any, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self._head_dim = size = config.own_head_dim
        self._padding = config.head_dim - size - 1
        quantization = vllm_config.quant_config
        num_heads, num_kv_heads = (
            count // PAIR for count in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            size,
            num_heads,
            num_kv_heads,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            num_heads * size,
            config.hidden_size,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.o_proj",
        )
        self.q_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.rotary_emb = get_rope(
            size, config.max_position_embeddings, rope_parameters=config.rope_parameters
        )
        counts = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads, self.qkv_proj.num_kv_heads
        self._sizes = [count * size for count in counts]
        self.attn = Attention(
            PAIR * counts[0],
            config.head_dim,
            size**-0.5,
            num_kv_heads=PAIR * counts[1],
            cache_config=vllm_config.cache_config,
            quant_config=quantization,
            prefix=f"{prefix}.attn",
        )

    def forward(
        self, positions: torch.Tensor, away: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Return [n * 2, hidden] of the same shape.

        From positions [n * 2], and what keys have beside a head [n * 2, 1, 1].
        """
        projected, _ = self.qkv_proj(hidden)
        queries, keys, values = projected.split(self._sizes, dim=-1)
        queries, keys = (
            norm(one.unflatten(-1, (-1, self._head_dim))).flatten(1)
            for norm, one in ((self.q_norm, queries), (self.k_norm, keys))
        )
        queries, keys = self.rotary_emb(positions, queries, keys)
        queries, keys, values = (
            one.unflatten(-1, (-1, self._head_dim)) for one in (queries, keys, values)
        )
        queries = pad(queries, (0, 1), value=REACH)
        keys = torch.cat([keys, away.expand(-1, keys.shape[1], -1)], dim=-1)
        queries, keys = (pad(one, (0, self._padding)) for one in (queries, keys))
        values = pad(values, (0, self._padding + 1))
        num_tokens = hidden.shape[0] // PAIR
        found = self.attn(*(one.reshape(num_tokens, -1) for one in (queries, keys, values)))
        found = found.view(hidden.shape[0], -1, queries.shape[-1])[..., : self._head_dim]
        output, _ = self.o_proj(found.flatten(1))
        return output


class PairLayer(nn.Module):
    """Attention and a network; images' ids may have a network of their own."""

    def __init__(self, config: Any, vllm_config: VllmConfig, prefix: str, number: int) -> None:
        super().__init__()
        self.self_attn = PairAttention(config, vllm_config, f"{prefix}.self_attn")

        def network(name: str) -> LlamaMLP:
            return LlamaMLP(
                config.hidden_size,
                config.intermediate_size,
                config.hidden_act,
                quant_config=vllm_config.quant_config,
                prefix=f"{prefix}.{name}",
            )

        self.mlp = network("mlp")
        self.gen_mlp = network("gen_mlp") if number in config.generation_layers else None
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        positions: torch.Tensor,
        away: torch.Tensor,
        is_image: torch.Tensor,
        hidden: torch.Tensor,
    ) -> torch.Tensor:
        """Return hidden states [n * 2, hidden] after this layer, from those before it."""
        hidden = hidden + self.self_attn(positions, away, self.input_layernorm(hidden))
        inputs = self.post_attention_layernorm(hidden)
        made = self.mlp(inputs)
        if self.gen_mlp is not None:
            made = torch.where(is_image, self.gen_mlp(inputs), made)
        return hidden + made


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "unguided": 0})
class PairBackbone(nn.Module):
    """The layers, compiled for ids and positions in buffers that never move."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: Any = vllm_config.model_config.hf_config
        self._first = config.image_vocab_start
        self._tapped = frozenset(config.tapped_layers)
        size = config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(config.text_vocab_size, size)
        self.gen_embed_tokens = VocabParallelEmbedding(config.vocab_size - self._first, size)
        self.layers = nn.ModuleList(
            PairLayer(config, vllm_config, f"{prefix}.layers.{number}", number)
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(size, eps=config.rms_norm_eps)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the two tables [n, hidden]."""
        is_image = (input_ids >= self._first)[:, None]
        text = self.embed_tokens(torch.where(is_image[:, 0], 0, input_ids))
        image = self.gen_embed_tokens((input_ids - self._first).clamp_min(0))
        return torch.where(is_image, image, text)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, unguided: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both halves' hidden states [n, 2 * hidden], and the mean of tapped inputs of the
        first half [n, hidden].

        From ids [n], positions [n] and those of the second half [n], negative where it reads
        nothing.
        """
        inputs = self.embed_input_ids(input_ids)
        hidden = inputs[:, None].expand(-1, PAIR, -1).flatten(0, 1)
        both = torch.stack([positions, unguided.clamp_min(0)], dim=1).flatten()
        apart = torch.where(unguided < 0, AWAY, 0.0)
        away = torch.stack([torch.zeros_like(apart), apart], dim=1).to(hidden.dtype)
        away = away.view(-1, 1, 1)
        is_image = (input_ids >= self._first)[:, None].expand(-1, PAIR).reshape(-1, 1)
        total = torch.zeros_like(inputs, dtype=torch.float32)
        for number, layer in enumerate(self.layers):
            if number in self._tapped:
                total = total + hidden.view(-1, PAIR, hidden.shape[-1])[:, 0].float()
            hidden = layer(both, away, is_image, hidden)
        mean = (total / len(self._tapped)).to(inputs.dtype)
        return self.norm(hidden).view(inputs.shape[0], -1), mean
