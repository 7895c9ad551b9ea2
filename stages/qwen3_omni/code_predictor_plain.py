"""What happens between the matrix products of the code predictor, in plain torch.

code_predictor_triton.py has the same functions as one kernel each.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from omnistage.stages.qwen3_omni.code_sampling import FrameSampling


@dataclass(frozen=True, slots=True)
class Span:
    """The positions one forward adds, and the rotations of all positions."""

    start: int
    end: int
    rotations: torch.Tensor  # [2, positions, head_dim], cosines and sines


def normalise(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm of the last dimension, in float32 as the reference does."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), eps=epsilon) * weight


def add_and_normalise(
    hidden: torch.Tensor, branch: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden + branch, and its RMS norm."""
    total = hidden if branch is None else hidden + branch
    return total, normalise(total, weight, epsilon)


def rotate_and_store(
    projected: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    epsilon: float,
    cache: torch.Tensor,
    span: Span,
) -> torch.Tensor:
    """Queries [B, n, heads, head_dim] of projected [B, n, heads + 2 * key heads, head_dim].

    Keys and values go to their positions in cache [2, B, positions, key heads, head_dim].
    """
    num_key_heads = cache.shape[3]
    num_heads = projected.shape[2] - 2 * num_key_heads
    queries, keys, values = projected.split([num_heads, num_key_heads, num_key_heads], dim=2)
    cache[0, :, span.start : span.end] = _rotate(normalise(keys, key_weight, epsilon), span)
    cache[1, :, span.start : span.end] = values
    return _rotate(normalise(queries, query_weight, epsilon), span)


def _rotate(heads: torch.Tensor, span: Span) -> torch.Tensor:
    cos, sin = span.rotations[:, span.start : span.end, None].unbind(0)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


def attend(queries: torch.Tensor, cache: torch.Tensor, span: Span) -> torch.Tensor:
    """Causal attention [B, n, heads * head_dim] over the cache up to the span's end."""
    keys, values = cache[:, :, : span.end].transpose(2, 3).unbind(0)
    output = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, is_causal=span.start == 0, enable_gqa=True
    )
    return output.transpose(1, 2).flatten(2)


def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half."""
    first, second = gate_and_up.chunk(2, dim=-1)
    return functional.silu(first) * second


def pick(logits: torch.Tensor, sampling: FrameSampling, codebook: int) -> torch.Tensor:
    """One code a row, int64 [B], from logits [B, vocabulary]."""
    scores, ids = (logits.float() / sampling.temperature).sort(descending=True, stable=True)
    ranks = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill(ranks >= sampling.top_k, float("-inf"))
    probabilities = scores.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    scores = scores.masked_fill(before >= sampling.top_p, float("-inf"))
    choice = (scores + sampling.noise[codebook].gather(1, ids)).argmax(-1, keepdim=True)
    return ids.gather(1, choice)[:, 0]
