"""Sampling without a generator: noise is a hash of where it is used.

A code is the argmax of its scaled logits plus Gumbel noise, and the noise of one token id depends
on the request's seed, the frame, the codebook and the id, on nothing else. So a request's codes do
not change with the batch around it, and a CUDA graph may replay the sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)  # splitmix64's constants as signed integers
FIRST_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND_MIX = 0x94D049BB133111EB - (1 << 64)
NUM_NOISE_BITS = 23  # half a step above 23 bits is exact in float32 and never 0 or 1

# Float32 [codebooks, B, vocabulary] from seeds and frames, both int64 [B], and these two numbers.
Noise = Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """How each row of a batch samples the codes of one frame."""

    temperature: torch.Tensor  # [B, 1], above 0
    top_k: torch.Tensor  # [B, 1], at least 1
    top_p: torch.Tensor  # [B, 1], above 0; infinite keeps all
    noise: torch.Tensor  # [codebooks, B, vocabulary], 0 in greedy rows


def frame_sampling(
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seed: torch.Tensor,
    frame: torch.Tensor,
    num_codebooks: int,
    vocab_size: int,
    make_noise: Noise | None = None,
) -> FrameSampling:
    """From one value a row: `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 keep all."""
    is_greedy = (temperature <= 0)[:, None]
    noise = (make_noise or gumbel_noise)(seed, frame, num_codebooks, vocab_size)
    return FrameSampling(
        temperature=torch.where(is_greedy, 1.0, temperature[:, None].float()),
        top_k=torch.where(top_k <= 0, vocab_size, top_k)[:, None],
        top_p=torch.where(top_p >= 1, float("inf"), top_p.float().clamp_min(1e-9))[:, None],
        noise=noise.masked_fill_(is_greedy, 0.0),
    )


def gumbel_noise(
    seed: torch.Tensor, frame: torch.Tensor, num_codebooks: int, vocab_size: int
) -> torch.Tensor:
    """Float32 [codebooks, B, vocabulary] from seeds and frames, both int64 [B]."""
    return -(-uniform_noise(seed, frame, num_codebooks, vocab_size).log()).log()


def uniform_noise(
    seed: torch.Tensor, frame: torch.Tensor, num_parts: int, size: int
) -> torch.Tensor:
    """Float32 [parts, B, size] between 0 and 1, without both, from int64 [B] each."""
    parts = torch.arange(num_parts, device=seed.device)[:, None, None]
    places = torch.arange(size, device=seed.device)
    key = seed[None, :, None]
    for counter in (frame[None, :, None], parts, places):
        key = _mix(key + (counter + 1) * GOLDEN_RATIO)
    return (_shift_right(key, 64 - NUM_NOISE_BITS).float() + 0.5) / (1 << NUM_NOISE_BITS)


def _mix(value: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64; int64 products wrap around."""
    value = (value ^ _shift_right(value, 30)) * FIRST_MIX
    value = (value ^ _shift_right(value, 27)) * SECOND_MIX
    return value ^ _shift_right(value, 31)


def _shift_right(value: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Fills with zeros, where int64's own shift copies the sign."""
    return (value >> num_bits) & ((1 << (64 - num_bits)) - 1)
