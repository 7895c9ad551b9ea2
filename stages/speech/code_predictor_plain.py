"""One pass of the code predictor over the new tokens of each row, in plain torch.

code_predictor_triton.py has the same functions as one CUDA kernel each.
"""

import torch
from torch.nn import functional

from omnistage.stages.speech.code_sampling import FrameSampling, gumbel_noise

__all__ = [
    "attend",
    "gumbel_noise",
    "linear",
    "linear_add",
    "normal_gated_linear",
    "normal_linear",
    "pick",
]


def normalise(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm of the last dimension, in float32 as the reference does."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), eps=epsilon) * weight


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """inputs [B, k] times weight [n, k], and bias [n]."""
    return functional.linear(inputs, weight, bias)


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
    """residual [B, n] + values [B, k] times weight [n, k]; it may be written over residual."""
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
    """Attention [B * n, heads * head_dim] of n new tokens a row, each over those up to it.

    `projected` [B * n, heads + 2 * key heads, head_dim] are their queries, keys and values; keys
    and values go to `position` and behind it in `cache` [2, B, positions, key heads, head_dim].
    `rotations` [2, positions, head_dim] are cosines and sines.
    """
    num_rows, _, num_key_heads = cache.shape[1:4]
    num_heads = projected.shape[1] - 2 * num_key_heads
    tokens = projected.view(num_rows, -1, *projected.shape[1:])
    queries, keys, values = tokens.split([num_heads, num_key_heads, num_key_heads], dim=2)
    end = position + tokens.shape[1]
    cos, sin = rotations[:, position:end, None]
    cache[0, :, position:end] = _rotate(normalise(keys, key_norm, epsilon), cos, sin)
    cache[1, :, position:end] = values
    known_keys, known_values = cache[:, :, :end].transpose(2, 3).unbind(0)
    output = functional.scaled_dot_product_attention(
        _rotate(normalise(queries, query_norm, epsilon), cos, sin).transpose(1, 2),
        known_keys,
        known_values,
        is_causal=position == 0,  # later tokens come one by one
        enable_gqa=True,
    )
    return output.transpose(1, 2).reshape(len(projected), -1)


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
