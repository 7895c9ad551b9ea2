"""The residual codes of a Qwen3-Omni frame: a small transformer run once a codebook.

Position 0 is the talker's hidden state, position 1 the embedding of code 0, then one residual code
after another; the last residual code is never fed. Everything is unrolled over static shapes, and
sampling uses counter-based noise, so the whole frame may be captured in one CUDA graph.
"""

import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)

from omnistage.stages.qwen3_omni.code_predictor_plain import Span
from omnistage.stages.qwen3_omni.code_sampling import frame_sampling

FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}


def operations(device: torch.device) -> ModuleType:
    """The functions between the matrix products: Triton comes with torch for CUDA only."""
    name = "triton" if device.type == "cuda" else "plain"
    return importlib.import_module(f"omnistage.stages.qwen3_omni.code_predictor_{name}")


class Attention(nn.Module):
    """Causal attention with fused projections; keys and values go to the caller's cache."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._head_dim, self._epsilon = config.head_dim, config.rms_norm_eps
        num_heads, num_key_heads = config.num_attention_heads, config.num_key_value_heads
        self.sizes = [
            heads * config.head_dim for heads in (num_heads, num_key_heads, num_key_heads)
        ]
        has_bias, size = config.attention_bias, config.hidden_size
        self.qkv_proj = nn.Linear(size, sum(self.sizes), bias=has_bias)
        self.o_proj = nn.Linear(self.sizes[0], size, bias=has_bias)
        self.q_norm = nn.RMSNorm(config.head_dim)
        self.k_norm = nn.RMSNorm(config.head_dim)

    def forward(self, hidden: torch.Tensor, cache: torch.Tensor, span: Span) -> torch.Tensor:
        """hidden [B, n, hidden]; cache [2, B, positions, key heads, head_dim]."""
        run = operations(hidden.device)
        projected = self.qkv_proj(hidden).view(*hidden.shape[:2], -1, self._head_dim)
        queries = run.rotate_and_store(
            projected, self.q_norm.weight, self.k_norm.weight, self._epsilon, cache, span
        )
        output: torch.Tensor = self.o_proj(run.attend(queries, cache, span))
        return output


class FeedForward(nn.Module):
    """The gated network with its two inputs fused."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self.sizes = [config.intermediate_size] * 2
        self.gate_up_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, n, hidden]."""
        run = operations(hidden.device)
        output: torch.Tensor = self.down_proj(run.gate(self.gate_up_proj(hidden)))
        return output


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._epsilon = config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size)

    def forward(
        self, hidden: torch.Tensor, branch: torch.Tensor | None, cache: torch.Tensor, span: Span
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """From and to a residual stream [B, n, hidden] and what is still to be added to it."""
        run = operations(hidden.device)
        norm = self.input_layernorm.weight
        hidden, normal = run.add_and_normalise(hidden, branch, norm, self._epsilon)
        branch = self.self_attn(normal, cache, span)
        norm = self.post_attention_layernorm.weight
        hidden, normal = run.add_and_normalise(hidden, branch, norm, self._epsilon)
        return hidden, self.mlp(normal)


class Backbone(nn.Module):
    """The layers and the embedding of each residual codebook."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        num_residuals = config.num_code_groups - 1
        self._epsilon = config.rms_norm_eps
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.hidden_size) for _ in range(num_residuals)
        )

    def forward(self, hidden: torch.Tensor, caches: torch.Tensor, span: Span) -> torch.Tensor:
        """Hidden state of the last position [B, hidden]."""
        branch = None
        for layer, cache in zip(self.layers, caches.unbind(0), strict=True):
            hidden, branch = layer(hidden, branch, cache, span)
        run = operations(hidden.device)
        _, normal = run.add_and_normalise(hidden, branch, self.norm.weight, self._epsilon)
        last: torch.Tensor = normal[:, -1]
        return last


class CodePredictor(nn.Module):
    """Residual codes of one frame for each row, and what the frame adds to the next input."""

    rotations: torch.Tensor

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._check(config)
        self._vocab_size = config.vocab_size
        self._cache_shape = (config.num_code_groups, config.num_key_value_heads, config.head_dim)
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
        if config.hidden_act != "silu":
            raise ValueError(f"the code predictor knows no hidden_act {config.hidden_act!r}")

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
        run = operations(last_hidden.device)
        codes, embeddings = [code0], [code0_embedding]
        inputs = torch.stack([last_hidden, code0_embedding], dim=1)
        position = 0
        for codebook, head in enumerate(self.lm_head):
            span = Span(position, position + inputs.shape[1], self.rotations)
            logits = head(self.model(inputs, caches, span))
            codes.append(run.pick(logits, sampling, codebook))
            embeddings.append(self.model.codec_embedding[codebook](codes[-1]))
            inputs = embeddings[-1][:, None]
            position = span.end
        return torch.stack(codes, dim=1), torch.stack(embeddings, dim=1).sum(1)

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
