"""One pass of the code predictor over one new token a row, in plain torch.

code_predictor_triton.py has the same functions as one CUDA kernel each.
"""

import torch
from torch.nn import functional

from omnistage.stages.qwen3_omni.code_sampling import FrameSampling


def normalise(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm of the last dimension, in float32 as the reference does."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), eps=epsilon) * weight


def normal_linear(
    hidden: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor
) -> torch.Tensor:
    """The RMS norm of hidden [B, k] times weight [n, k]: [B, n]."""
    return functional.linear(normalise(hidden, norm, epsilon), weight)


def normal_gated_linear(
    hidden: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor
) -> torch.Tensor:
    """silu(first half) * second half of the RMS norm times weight [2 n, k]: [B, n]."""
    first, second = normal_linear(hidden, norm, epsilon, weight).chunk(2, dim=-1)
    return functional.silu(first) * second


def linear_add(values: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """residual [B, n] + values [B, k] times weight [n, k]."""
    return residual + functional.linear(values, weight)


def attend(
    projected: torch.Tensor,
    query_norm: torch.Tensor,
    key_norm: torch.Tensor,
    epsilon: float,
    cache: torch.Tensor,
    position: int,
    rotations: torch.Tensor,
) -> torch.Tensor:
    """Attention [B, heads * head_dim] of one new token over its row's tokens up to it.

    `projected` [B, heads + 2 * key heads, head_dim] are its queries, keys and values; key and value
    go to `position` of `cache` [2, B, positions, key heads, head_dim]. `rotations` [2, positions,
    head_dim] are cosines and sines.
    """
    num_key_heads = cache.shape[3]
    num_heads = projected.shape[1] - 2 * num_key_heads
    queries, keys, values = projected.split([num_heads, num_key_heads, num_key_heads], dim=1)
    cos, sin = rotations[:, position]
    queries = _rotate(normalise(queries, query_norm, epsilon), cos, sin)
    cache[0, :, position] = _rotate(normalise(keys, key_norm, epsilon), cos, sin)
    cache[1, :, position] = values
    known_keys, known_values = cache[:, :, : position + 1].transpose(2, 3).unbind(0)
    output = functional.scaled_dot_product_attention(
        queries[:, :, None], known_keys, known_values, enable_gqa=True
    )
    return output.flatten(1)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


def pick(
    logits: torch.Tensor,
    sampling: FrameSampling,
    codebook: int,
    table: torch.Tensor,
    total: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One code a row, int64 [B], from logits [B, vocabulary], and its line of `table` [B, hidden].

    The line is also added to `total`, float32 [B, hidden].
    """
    scores, ids = (logits.float() / sampling.temperature).sort(descending=True, stable=True)
    ranks = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill(ranks >= sampling.top_k, float("-inf"))
    probabilities = scores.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    scores = scores.masked_fill(before >= sampling.top_p, float("-inf"))
    choice = (scores + sampling.noise[codebook].gather(1, ids)).argmax(-1, keepdim=True)
    codes = ids.gather(1, choice)[:, 0]
    embeddings = table[codes]
    total += embeddings
    return codes, embeddings
