"""The residual codes of a Qwen3-Omni frame: a small transformer run once a codebook.

Position 0 is the talker's hidden state, position 1 the embedding of code 0, then one residual code
after another; the last residual code is never fed. Everything is unrolled over static shapes, and
sampling uses counter-based noise, so the whole frame may be captured in one CUDA graph.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)

from omnistage.stages.qwen3_omni.code_sampling import frame_sampling

FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}


@dataclass(frozen=True, slots=True)
class Span:
    """The positions one forward adds, and what they need."""

    start: int
    end: int
    cos: torch.Tensor  # [end - start, 1, head_dim]
    sin: torch.Tensor


class RMSNorm(nn.Module):
    """Normalises in float32, as the reference does."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the last dimension."""
        size = (hidden.shape[-1],)
        return functional.rms_norm(hidden, size, eps=self._epsilon) * self.weight


class Attention(nn.Module):
    """Causal attention with fused projections; keys and values go to the caller's cache."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._num_heads = config.num_attention_heads
        self._num_key_heads = config.num_key_value_heads
        self._head_dim = config.head_dim
        num_projected = self._num_heads + 2 * self._num_key_heads
        self.sizes = [
            num_heads * self._head_dim
            for num_heads in (self._num_heads, self._num_key_heads, self._num_key_heads)
        ]
        has_bias = config.attention_bias
        size = config.hidden_size
        self.qkv_proj = nn.Linear(size, num_projected * self._head_dim, bias=has_bias)
        self.o_proj = nn.Linear(self._num_heads * self._head_dim, size, bias=has_bias)
        self.q_norm = RMSNorm(self._head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self._head_dim, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, cache: torch.Tensor, span: Span) -> torch.Tensor:
        """hidden [B, n, hidden]; cache [2, B, key heads, positions, head_dim]."""
        projected = self.qkv_proj(hidden).unflatten(-1, (-1, self._head_dim))
        queries, keys, values = projected.split(
            [self._num_heads, self._num_key_heads, self._num_key_heads], dim=2
        )
        queries = rotate(self.q_norm(queries), span).transpose(1, 2)
        cache[0, :, :, span.start : span.end] = rotate(self.k_norm(keys), span).transpose(1, 2)
        cache[1, :, :, span.start : span.end] = values.transpose(1, 2)
        output = functional.scaled_dot_product_attention(
            queries,
            cache[0, :, :, : span.end],
            cache[1, :, :, : span.end],
            is_causal=span.start == 0,
            enable_gqa=self._num_heads != self._num_key_heads,
        )
        attended: torch.Tensor = self.o_proj(output.transpose(1, 2).flatten(2))
        return attended


class FeedForward(nn.Module):
    """The gated network with its two inputs fused."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self.sizes = [config.intermediate_size] * 2
        self.gate_up_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, n, hidden]."""
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(self._activation(gate) * up)
        return output


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, cache: torch.Tensor, span: Span) -> torch.Tensor:
        """[B, n, hidden]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cache, span)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Backbone(nn.Module):
    """The layers and the embedding of each residual codebook."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        num_residuals = config.num_code_groups - 1
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.hidden_size) for _ in range(num_residuals)
        )

    def forward(self, hidden: torch.Tensor, caches: torch.Tensor, span: Span) -> torch.Tensor:
        """Hidden state of the last position [B, hidden]."""
        for layer, cache in zip(self.layers, caches.unbind(0), strict=True):
            hidden = layer(hidden, cache, span)
        output: torch.Tensor = self.norm(hidden[:, -1])
        return output


class CodePredictor(nn.Module):
    """Residual codes of one frame for each row, and what the frame adds to the next input."""

    rotations: torch.Tensor

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._check(config)
        self._vocab_size = config.vocab_size
        self._cache_shape = (config.num_key_value_heads, config.num_code_groups, config.head_dim)
        self.model = Backbone(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            for _ in range(config.num_code_groups - 1)
        )
        self.register_buffer("rotations", rotation_table(config), persistent=False)

    @staticmethod
    def _check(config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        rope: Any = config.rope_parameters
        rope_type = rope["rope_type"]
        if rope_type != "default":
            raise ValueError(f"the code predictor knows no rope_type {rope_type!r}, only 'default'")
        window = config.sliding_window
        if window is not None and window < config.num_code_groups:
            raise ValueError("the code predictor's sliding_window is shorter than a frame")

    def forward(
        self,
        last_hidden: torch.Tensor,
        code0: torch.Tensor,
        code0_embedding: torch.Tensor,
        *,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        seed: torch.Tensor,
        frame: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes int64 [B, groups] with code 0 first, and the sum of their embeddings [B, hidden].

        `last_hidden` [B, hidden] is the talker's state that sampled `code0`, `code0_embedding` the
        talker's own. One value a row: `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 keep all;
        the same `seed` and `frame` give the same codes whatever else is in the batch.
        """
        caches = last_hidden.new_empty((len(self.model.layers), 2, len(code0), *self._cache_shape))
        sampling = frame_sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            frame=frame,
            num_codebooks=len(self.lm_head),
            vocab_size=self._vocab_size,
        )
        codes, embeddings = [code0], [code0_embedding]
        inputs = torch.stack([last_hidden, code0_embedding], dim=1)
        position = 0
        for codebook, head in enumerate(self.lm_head):
            span = self._span(position, position + inputs.shape[1])
            logits = head(self.model(inputs, caches, span))
            codes.append(sampling.pick(logits, codebook))
            embeddings.append(self.model.codec_embedding[codebook](codes[-1]))
            inputs = embeddings[-1][:, None]
            position = span.end
        return torch.stack(codes, dim=1), torch.stack(embeddings, dim=1).sum(1)

    def _span(self, start: int, end: int) -> Span:
        cos, sin = self.rotations[:, start:end, None].unbind(0)
        return Span(start, end, cos, sin)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take weights named as below `talker.code_predictor.`; returns the parameters filled."""
        parameters = dict(self.named_parameters())
        loaded = set()
        for name, weight in weights:
            owner_name, module_name, kind = name.rsplit(".", 2)
            if module_name in FUSED:
                fused_name, part = FUSED[module_name]
                owner: Any = self.get_submodule(owner_name)
                name = f"{owner_name}.{fused_name}.{kind}"
                start = sum(owner.sizes[:part])
                target = parameters[name][start : start + owner.sizes[part]]
            else:
                target = parameters[name]
            target.data.copy_(weight)
            loaded.add(name)
        return loaded


def rotation_table(config: Qwen3OmniMoeTalkerCodePredictorConfig) -> torch.Tensor:
    """Cosines and sines of every position [2, positions, head_dim]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    rope: Any = config.rope_parameters
    frequencies = 1.0 / (rope["rope_theta"] ** exponents)
    positions = torch.arange(config.num_code_groups, dtype=torch.float32)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())


def rotate(heads: torch.Tensor, span: Span) -> torch.Tensor:
    """Rotary embedding of [B, n, heads, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * span.cos + torch.cat([-second, first], dim=-1) * span.sin
