"""The residual codes of a codec frame: a small transformer run once a codebook.

Position 0 is the talker's hidden state, position 1 the embedding of code 0, then one residual code
after another; the last residual code is never fed. Everything is unrolled over static shapes, and
sampling uses counter-based noise, so the whole frame may be captured in one CUDA graph.

A predictor of another width than its talker projects what it is fed; the codes' embeddings are
projected once, at load. What a frame adds to the talker's next input is not projected.
"""

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)

from omnistage.stages.speech.code_sampling import frame_sampling

FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
EMBEDDING = "model.codec_embedding."


def operations(device: torch.device) -> ModuleType:
    """The steps of a pass: Triton comes with torch for CUDA only."""
    name = "triton" if device.type == "cuda" else "plain"
    return importlib.import_module(f"omnistage.stages.speech.code_predictor_{name}")


def projected(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """A layer's product of inputs [B, k]; with VLLM_BATCH_INVARIANT a row is the same for any B."""
    output: torch.Tensor = operations(inputs.device).linear(inputs, layer.weight, layer.bias)
    return output


class Attention(nn.Module):
    """Projections of an attention block, those of its inputs fused."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        num_heads, num_key_heads = config.num_attention_heads, config.num_key_value_heads
        self.sizes = [
            heads * config.head_dim for heads in (num_heads, num_key_heads, num_key_heads)
        ]
        size = config.hidden_size
        self.qkv_proj = nn.Linear(size, sum(self.sizes), bias=False)
        self.o_proj = nn.Linear(self.sizes[0], size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim)
        self.k_norm = nn.RMSNorm(config.head_dim)


class FeedForward(nn.Module):
    """Projections of a gated network, its two inputs fused."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self.sizes = [config.intermediate_size] * 2
        self.gate_up_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        self._epsilon, self._head_dim = config.rms_norm_eps, config.head_dim
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size)

    def forward(
        self, hidden: torch.Tensor, cache: torch.Tensor, position: int, rotations: torch.Tensor
    ) -> torch.Tensor:
        """From and to hidden states of the new tokens, row after row [B * n, hidden]."""
        run, epsilon = operations(hidden.device), self._epsilon
        attention, network = self.self_attn, self.mlp
        norm = self.input_layernorm.weight
        projected = run.normal_linear(hidden, norm, epsilon, attention.qkv_proj.weight)
        attended = run.attend(
            projected.view(len(hidden), -1, self._head_dim),
            attention.q_norm.weight,
            attention.k_norm.weight,
            epsilon,
            cache,
            position,
            rotations,
        )
        hidden = run.linear_add(attended, attention.o_proj.weight, hidden)
        norm = self.post_attention_layernorm.weight
        gated = run.normal_gated_linear(hidden, norm, epsilon, network.gate_up_proj.weight)
        output: torch.Tensor = run.linear_add(gated, network.down_proj.weight, hidden)
        return output


class Backbone(nn.Module):
    """The layers and the embedding of each residual codebook."""

    def __init__(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        super().__init__()
        num_residuals = config.num_code_groups - 1
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.hidden_size) for _ in range(num_residuals)
        )


class CodePredictor(nn.Module):
    """Residual codes of one frame for each row, and what the frame adds to the next input."""

    rotations: torch.Tensor

    def __init__(
        self,
        config: Qwen3OmniMoeTalkerCodePredictorConfig,
        *,
        talker_size: int | None = None,
        embeds_frames: bool = False,
    ) -> None:
        """`talker_size`: the talker's width, if it is another. `embeds_frames`: as for `embedded`.

        Either has the embeddings twice: as the predictor is fed them, and as the talker is.
        """
        super().__init__()
        self._check(config)
        size = config.hidden_size if talker_size is None else talker_size
        self._vocab_size, self._epsilon = config.vocab_size, config.rms_norm_eps
        self._cache_shape = (config.num_code_groups, config.num_key_value_heads, config.head_dim)
        self.model = Backbone(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            for _ in range(config.num_code_groups - 1)
        )
        self.register_buffer("rotations", rotation_table(config), persistent=False)
        is_projected = size != config.hidden_size
        self.small_to_mtp_projection = nn.Linear(size, config.hidden_size) if is_projected else None
        self.frame_table: nn.Parameter | None = None
        if is_projected or embeds_frames:
            shape = (config.num_code_groups - 1) * config.vocab_size, size
            self.frame_table = nn.Parameter(torch.zeros(shape), requires_grad=False)

    @staticmethod
    def _check(config: Qwen3OmniMoeTalkerCodePredictorConfig) -> None:
        rope: Any = config.rope_parameters
        rope_type = rope["rope_type"]
        if rope_type != "default":
            raise ValueError(f"the code predictor knows no rope_type {rope_type!r}, only 'default'")
        window = config.sliding_window
        if window is not None and window < config.num_code_groups:
            raise ValueError("the code predictor's sliding_window is shorter than a frame")
        if config.attention_bias:
            raise ValueError("the code predictor knows no attention_bias")
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
        run, norm = operations(last_hidden.device), self.model.norm.weight
        num_layers = len(self.model.layers)
        caches = last_hidden.new_empty((num_layers, 2, len(code0), *self._cache_shape))
        sampling = frame_sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            frame=frame,
            num_codebooks=len(self.lm_head),
            vocab_size=self._vocab_size,
            make_noise=run.gumbel_noise,
        )
        inputs = torch.stack([last_hidden, code0_embedding], dim=1).flatten(0, 1)
        total = code0_embedding.to(torch.float32, copy=True)
        if self.small_to_mtp_projection is not None:
            inputs = projected(self.small_to_mtp_projection, inputs)
            total = inputs.new_zeros((len(code0), inputs.shape[-1]), dtype=torch.float32)  # unread
        hidden = self._pass(inputs, caches, 0)[1::2].contiguous()
        codes = [code0]
        for codebook, head in enumerate(self.lm_head):
            if codebook > 0:
                hidden = self._pass(inputs, caches, codebook + 1)
            logits = run.normal_linear(hidden, norm, self._epsilon, head.weight)
            table = self.model.codec_embedding[codebook].weight
            code, inputs = run.pick(logits, sampling, codebook, table, total)
            codes.append(code)
        frames = torch.stack(codes, dim=1)
        if self.small_to_mtp_projection is not None:
            total = code0_embedding + self.embedded(frames[:, 1:])
        return frames, total.to(code0_embedding.dtype)

    def embedded(self, residuals: torch.Tensor) -> torch.Tensor:
        """The sum [n, talker's width], in float32, of what residual codes [n, groups - 1] embed to.

        Of a predictor with `embeds_frames`, or whose embeddings are projected.
        """
        assert self.frame_table is not None
        offsets = torch.arange(residuals.shape[1], device=residuals.device) * self._vocab_size
        return functional.embedding(residuals + offsets, self.frame_table).float().sum(1)

    def _pass(self, hidden: torch.Tensor, caches: torch.Tensor, position: int) -> torch.Tensor:
        for layer, cache in zip(self.model.layers, caches.unbind(0), strict=True):
            hidden = layer(hidden, cache, position, self.rotations)
        return hidden

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take weights named as below `talker.code_predictor.`; returns the parameters filled."""
        parameters = dict(self.named_parameters())
        loaded = set()
        for name, weight in weights:
            module_name = name.split(".")[-2]
            if module_name in FUSED:
                owner_name, _, kind = name.rsplit(".", 2)
                fused_name, part = FUSED[module_name]
                owner: Any = self.get_submodule(owner_name)
                name = f"{owner_name}.{fused_name}.{kind}"
                start = sum(owner.sizes[:part])
                target = parameters[name][start : start + owner.sizes[part]]
            else:
                target = self._target(name, parameters)
            target.data.copy_(weight)
            loaded.add(name)
        return loaded | self._project()

    def _target(self, name: str, parameters: Mapping[str, nn.Parameter]) -> torch.Tensor:
        """Where a weight goes: embeddings of codes, as the talker has them, to the frame table."""
        if self.frame_table is None or not name.startswith(EMBEDDING):
            return parameters[name]
        group = int(name.removeprefix(EMBEDDING).split(".")[0])
        return self.frame_table[group * self._vocab_size :][: self._vocab_size]

    @torch.no_grad()
    def _project(self) -> set[str]:
        """Make the embeddings that the predictor is fed."""
        if self.frame_table is None:
            return set()
        tables = self.frame_table.split(self._vocab_size)
        project: Any = self.small_to_mtp_projection or nn.Identity()
        own_tables: Any = self.model.codec_embedding
        for table, own in zip(tables, own_tables, strict=True):
            own.weight.copy_(project(table))
        return {"frame_table"}


def rotation_table(config: Qwen3OmniMoeTalkerCodePredictorConfig) -> torch.Tensor:
    """Cosines and sines of every position [2, positions, head_dim]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    rope: Any = config.rope_parameters
    frequencies = 1.0 / (rope["rope_theta"] ** exponents)
    positions = torch.arange(config.num_code_groups, dtype=torch.float32)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).to(torch.get_default_dtype())
