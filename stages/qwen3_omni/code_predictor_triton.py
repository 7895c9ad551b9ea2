# mypy: disable-error-code="no-untyped-def,import-untyped"
"""What happens between the matrix products of the code predictor, one CUDA kernel each.

A frame is fifteen passes over five layers of tiny tensors: its time is the number of kernels. The
functions are those of code_predictor_plain.py.
"""

import torch
import triton
import triton.language as tl

from omnistage.stages.qwen3_omni.code_predictor_plain import Span
from omnistage.stages.qwen3_omni.code_sampling import FrameSampling


@triton.jit
def _add_and_normalise(
    hidden, branch, weight, total, output, EPSILON: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, HAS_BRANCH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * SIZE
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    value = tl.load(hidden + row + column, mask=inside, other=0.0)
    if HAS_BRANCH:
        value += tl.load(branch + row + column, mask=inside, other=0.0)
        tl.store(total + row + column, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + EPSILON)
    normal = (wide * scale).to(value.dtype)
    factor = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(output + row + column, normal * factor, mask=inside)


def add_and_normalise(
    hidden: torch.Tensor, branch: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden + branch, and its RMS norm."""
    hidden = hidden.contiguous()
    size = hidden.shape[-1]
    output = torch.empty_like(hidden)
    total = hidden if branch is None else torch.empty_like(hidden)
    _add_and_normalise[(hidden.numel() // size,)](
        hidden, hidden if branch is None else branch, weight, total, output, EPSILON=epsilon,
        SIZE=size, BLOCK=triton.next_power_of_2(size), HAS_BRANCH=branch is not None,
    )  # fmt: skip
    return total, output


@triton.jit
def _rotate_and_store(
    projected, query_weight, key_weight, rotations, queries, cache, CACHE_SIZE,
    EPSILON: tl.constexpr, START: tl.constexpr, NUM_NEW: tl.constexpr, NUM_POSITIONS: tl.constexpr,
    NUM_HEADS: tl.constexpr, NUM_KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1)
    row = token // NUM_NEW
    position = START + token % NUM_NEW
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    source = projected + (token * (NUM_HEADS + 2 * NUM_KEY_HEADS) + head) * SIZE
    value = tl.load(source + column, mask=inside, other=0.0)
    slot = cache + (row * NUM_POSITIONS + position) * NUM_KEY_HEADS * SIZE + column
    if head >= NUM_HEADS + NUM_KEY_HEADS:
        slot += CACHE_SIZE + (head - NUM_HEADS - NUM_KEY_HEADS) * SIZE
        tl.store(slot, value, mask=inside)
    else:
        weight = key_weight
        target = slot + (head - NUM_HEADS) * SIZE
        if head < NUM_HEADS:
            weight = query_weight
            target = queries + (token * NUM_HEADS + head) * SIZE + column
        wide = value.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + EPSILON)
        partner = (column + SIZE // 2) % SIZE
        other = tl.load(source + partner, mask=inside, other=0.0).to(tl.float32)
        own = (wide * scale).to(value.dtype) * tl.load(weight + column, mask=inside, other=0.0)
        other = (other * scale).to(value.dtype) * tl.load(weight + partner, mask=inside, other=0.0)
        other = tl.where(column < SIZE // 2, -other, other)
        angle = rotations + position * SIZE + column
        cos = tl.load(angle, mask=inside, other=0.0)
        sin = tl.load(angle + NUM_POSITIONS * SIZE, mask=inside, other=0.0)
        tl.store(target, own * cos + other * sin, mask=inside)


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
    num_rows, num_new, num_projected, size = projected.shape
    num_positions, num_key_heads = cache.shape[2:4]
    num_heads = num_projected - 2 * num_key_heads
    queries = projected.new_empty(num_rows, num_new, num_heads, size)
    _rotate_and_store[(num_rows * num_new, num_projected)](
        projected, query_weight, key_weight, span.rotations, queries, cache, cache[0].numel(),
        EPSILON=epsilon, START=span.start, NUM_NEW=num_new, NUM_POSITIONS=num_positions,
        NUM_HEADS=num_heads, NUM_KEY_HEADS=num_key_heads, SIZE=size,
        BLOCK=triton.next_power_of_2(size), num_warps=1,
    )  # fmt: skip
    return queries


@triton.jit
def _attend(
    queries, cache, output, CACHE_SIZE, SCALE: tl.constexpr, START: tl.constexpr,
    NUM_NEW: tl.constexpr, NUM_POSITIONS: tl.constexpr, NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1)
    row = token // NUM_NEW
    last = START + token % NUM_NEW
    column = tl.arange(0, BLOCK)
    position = tl.arange(0, BLOCK_POSITIONS)
    own = (token * NUM_HEADS + head) * SIZE + column
    query = tl.load(queries + own, mask=column < SIZE, other=0.0).to(tl.float32)
    key_head = head // (NUM_HEADS // NUM_KEY_HEADS)
    place = ((row * NUM_POSITIONS + position) * NUM_KEY_HEADS + key_head) * SIZE
    place = place[:, None] + column[None, :]
    seen = (position <= last)[:, None] & (column < SIZE)[None, :]
    keys = tl.load(cache + place, mask=seen, other=0.0).to(tl.float32)
    score = tl.sum(keys * query[None, :], 1) * SCALE
    score = tl.where(position <= last, score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 0))
    weight = weight / tl.sum(weight, 0)
    values = tl.load(cache + CACHE_SIZE + place, mask=seen, other=0.0).to(tl.float32)
    result = tl.sum(values * weight[:, None], 0)
    tl.store(output + own, result.to(output.dtype.element_ty), mask=column < SIZE)


def attend(queries: torch.Tensor, cache: torch.Tensor, span: Span) -> torch.Tensor:
    """Causal attention [B, n, heads * head_dim] over the cache up to the span's end."""
    num_rows, num_new, num_heads, size = queries.shape
    num_positions, num_key_heads = cache.shape[2:4]
    output = torch.empty_like(queries)
    _attend[(num_rows * num_new, num_heads)](
        queries, cache, output, cache[0].numel(), SCALE=size**-0.5, START=span.start,
        NUM_NEW=num_new, NUM_POSITIONS=num_positions, NUM_HEADS=num_heads,
        NUM_KEY_HEADS=num_key_heads, SIZE=size, BLOCK=triton.next_power_of_2(size),
        BLOCK_POSITIONS=triton.next_power_of_2(span.end), num_warps=1,
    )  # fmt: skip
    return output.flatten(2)


@triton.jit
def _gate(gate_and_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    first = tl.load(gate_and_up + row * 2 * SIZE + column, mask=inside, other=0.0)
    second = tl.load(gate_and_up + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0)
    wide = first.to(tl.float32)
    activated = (wide * tl.sigmoid(wide)).to(first.dtype)
    tl.store(output + row * SIZE + column, activated * second, mask=inside)


def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half."""
    size = gate_and_up.shape[-1] // 2
    output = gate_and_up.new_empty(*gate_and_up.shape[:-1], size)
    block = 1024
    _gate[(output.numel() // size, triton.cdiv(size, block))](
        gate_and_up, output, SIZE=size, BLOCK=block
    )
    return output


@triton.jit
def _ordered(value):
    """The bits of a float32 as an integer of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _pick(logits, temperature, top_k, top_p, noise, codes, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    logit = tl.load(logits + row * SIZE + column, mask=inside, other=float("-inf"))
    score = logit.to(tl.float32) / tl.load(temperature + row)
    order = _ordered(score)
    # The largest bound that at least k scores reach: halve the range of integers.
    k = tl.minimum(tl.load(top_k + row), SIZE)
    low = tl.min(tl.where(inside, order, 0x7FFFFFFF), 0).to(tl.int64)
    high = tl.max(tl.where(inside, order, -0x7FFFFFFF), 0).to(tl.int64)
    highest = high
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum((inside & (order >= middle)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    kept = inside & (order >= low)
    weight = tl.where(kept, tl.exp(score - tl.max(score, 0)), 0.0)
    # The largest bound whose scores hold the wanted probability; an infinite one holds none.
    wanted = tl.load(top_p + row) * tl.sum(weight, 0)
    high = highest
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(order >= middle, weight, 0.0), 0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    kept = kept & (order >= low)
    noisy = score + tl.load(noise + row * SIZE + column, mask=inside, other=0.0)
    tl.store(codes + row, tl.argmax(tl.where(kept, noisy, float("-inf")), 0).to(tl.int64))


def pick(logits: torch.Tensor, sampling: FrameSampling, codebook: int) -> torch.Tensor:
    """One code a row, int64 [B], from logits [B, vocabulary]; equal logits stay or go together."""
    num_rows, size = logits.shape
    codes = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    _pick[(num_rows,)](
        logits.contiguous(), sampling.temperature, sampling.top_k, sampling.top_p,
        sampling.noise[codebook], codes, SIZE=size, BLOCK=triton.next_power_of_2(size), num_warps=8,
    )  # fmt: skip
    return codes
