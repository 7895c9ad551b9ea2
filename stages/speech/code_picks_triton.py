# mypy: disable-error-code="no-untyped-def,import-untyped"
"""The code predictor's noise and its choice of a code, one CUDA kernel each."""

import torch
import triton
import triton.language as tl

from omnistage.stages.speech.code_products_triton import (
    EARLY,
    STARTS_EARLY,
    let_next_start,
    wait_for_inputs,
)
from omnistage.stages.speech.code_sampling import (
    FIRST_MIX,
    GOLDEN_RATIO,
    NUM_NOISE_BITS,
    SECOND_MIX,
    FrameSampling,
)

UINT64 = (1 << 64) - 1
FIRST, SECOND = tl.constexpr(FIRST_MIX & UINT64), tl.constexpr(SECOND_MIX & UINT64)
GOLDEN = tl.constexpr(GOLDEN_RATIO & UINT64)
UNUSED_BITS, LEVELS = tl.constexpr(64 - NUM_NOISE_BITS), tl.constexpr(1 << NUM_NOISE_BITS)


@triton.jit
def _mix(value):
    value = (value ^ (value >> 30)) * FIRST
    value = (value ^ (value >> 27)) * SECOND
    return value ^ (value >> 31)


@triton.jit
def _gumbel(seed, frame, output, NUM_ROWS, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, codebook = tl.program_id(0), tl.program_id(1)
    key = tl.load(seed + row).to(tl.uint64, bitcast=True)
    number = tl.load(frame + row).to(tl.uint64, bitcast=True)
    key = _mix(key + (number + 1) * GOLDEN)
    key = _mix(key + (codebook + 1).to(tl.uint64) * GOLDEN)
    column = tl.arange(0, BLOCK)
    drawn = _mix(key + (column + 1).to(tl.uint64) * GOLDEN) >> UNUSED_BITS
    uniform = (drawn.to(tl.float32) + 0.5) / LEVELS
    place = (codebook * NUM_ROWS + row) * SIZE + column
    tl.store(output + place, -tl.log(-tl.log(uniform)), mask=column < SIZE)


def gumbel_noise(
    seed: torch.Tensor, frame: torch.Tensor, num_codebooks: int, vocab_size: int
) -> torch.Tensor:
    """That of code_sampling.py as one kernel: float32 [codebooks, B, vocabulary]."""
    num_rows = len(seed)
    shape = num_codebooks, num_rows, vocab_size
    noise = torch.empty(shape, dtype=torch.float32, device=seed.device)
    _gumbel[(num_rows, num_codebooks)](
        seed, frame, noise, num_rows, SIZE=vocab_size, BLOCK=triton.next_power_of_2(vocab_size),
        num_warps=8,
    )  # fmt: skip
    return noise


@triton.jit
def _ordered(value):
    """The bits of a float32 as an integer of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _largest_bound(order, weight, low, high, wanted, WAYS: tl.constexpr):
    """The largest integer in low..high that `weight` of at least `wanted` reaches.

    Each round asks for WAYS bounds at once and keeps one part of the range.
    """
    way = tl.arange(0, WAYS)
    while low < high:
        step = (high - low + WAYS) // (WAYS + 1)
        bound = low + step * (way + 1)
        is_above = order[:, None] >= bound.to(tl.int32)[None, :]
        reaching = tl.where(is_above, weight[:, None], 0.0)
        passed = (tl.sum(reaching, 0) >= wanted) & (bound <= high)
        number = tl.sum(passed.to(tl.int64), 0)
        high = tl.minimum(high, low + step * (number + 1) - 1)
        low += step * number
    return low


@triton.jit
def _pick(
    logits, temperature, top_k, top_p, noise, table, total, codes, embeddings, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, HIDDEN: tl.constexpr, HIDDEN_BLOCK: tl.constexpr, WAYS: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_EARLY)
    wait_for_inputs(IS_EARLY)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    logit = tl.load(logits + row * SIZE + column, mask=inside, other=float("-inf"))
    noisy = tl.load(noise + row * SIZE + column, mask=inside, other=0.0)
    score = logit.to(tl.float32) / tl.load(temperature + row)
    order = _ordered(score)
    low = tl.min(tl.where(inside, order, 0x7FFFFFFF), 0).to(tl.int64)
    high = tl.max(tl.where(inside, order, -0x7FFFFFFF), 0).to(tl.int64)
    # The largest bound that at least k scores reach.
    k = tl.minimum(tl.load(top_k + row), SIZE).to(tl.float32)
    low = _largest_bound(order, inside.to(tl.float32), low, high, k, WAYS)
    kept = inside & (order >= low)
    weight = tl.where(kept, tl.exp(score - tl.max(score, 0)), 0.0)
    # The largest bound whose scores hold the wanted probability; an infinite one holds none.
    wanted = tl.load(top_p + row) * tl.sum(weight, 0)
    low = _largest_bound(order, weight, low, high, wanted, WAYS)
    noisy = tl.where(kept & (order >= low), score + noisy, float("-inf"))
    code = tl.argmax(noisy, 0).to(tl.int64)
    tl.store(codes + row, code)
    column = tl.arange(0, HIDDEN_BLOCK)
    inside = column < HIDDEN
    embedding = tl.load(table + code * HIDDEN + column, mask=inside, other=0.0)
    place = row * HIDDEN + column
    tl.store(embeddings + place, embedding, mask=inside)
    before = tl.load(total + place, mask=inside, other=0.0)
    tl.store(total + place, before + embedding.to(tl.float32), mask=inside)


def pick(
    logits: torch.Tensor,
    sampling: FrameSampling,
    codebook: int,
    table: torch.Tensor,
    total: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One code a row, int64 [B], from logits [B, vocabulary], and its line of `table` [B, hidden].

    Equal logits are kept or dropped together. The line is also added to `total`, float32.
    """
    num_rows, size = logits.shape
    codes = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    hidden = table.shape[1]
    embeddings = table.new_empty(num_rows, hidden)
    _pick[(num_rows,)](
        logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.noise[codebook],
        table, total, codes, embeddings, SIZE=size, BLOCK=triton.next_power_of_2(size),
        HIDDEN=hidden, HIDDEN_BLOCK=triton.next_power_of_2(hidden), WAYS=8, num_warps=8,
        IS_EARLY=STARTS_EARLY, **EARLY,
    )  # fmt: skip
    return codes, embeddings
