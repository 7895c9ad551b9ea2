# mypy: disable-error-code="no-untyped-def,import-untyped"
"""One pass of the code predictor over the new tokens of each row, one CUDA kernel a step.

A frame is fifteen passes over five layers of tiny tensors: its time is the number of kernels, and
how fast each of them gets its weights. So a kernel starts while the one before it still runs
(programmatic dependent launch) and waits for it only before it reads what it wrote; weights are
read before that. The functions are those of code_predictor_plain.py.
"""

import os

import torch
import triton
import triton.language as tl
from torch.nn import functional

from omnistage.stages.speech.code_sampling import (
    FIRST_MIX,
    GOLDEN_RATIO,
    NUM_NOISE_BITS,
    SECOND_MIX,
    FrameSampling,
)

# vLLM's switch for codes of a row that do not depend on how many others there are.
IS_INVARIANT = os.environ.get("VLLM_BATCH_INVARIANT") == "1"
# So few are fastest without matrix units; of more the number decides which kernel cuBLAS takes.
FEW_ROWS = 0 if IS_INVARIANT else 2
TILE = 4096  # weights that a program of few rows holds


def _starts_early() -> bool:
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] >= 9


STARTS_EARLY = _starts_early()
EARLY = {"launch_pdl": True} if STARTS_EARLY else {}


@triton.jit
def _wait_for_inputs(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _let_next_start(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _linear(
    inputs, weight, norm, residual, output, EPSILON: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, IS_GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    INPUT_BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    _let_next_start(IS_EARLY)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, INPUT_BLOCK)
    inside = k < NUM_INPUTS
    here = column < NUM_OUTPUTS
    mask = here[:, None] & inside[None, :]
    place = column[:, None] * NUM_INPUTS + k[None, :]
    part = tl.load(weight + place, mask=mask, other=0.0)
    other = part
    if IS_GATED:
        other = tl.load(weight + NUM_OUTPUTS * NUM_INPUTS + place, mask=mask, other=0.0)
    factor = tl.load(norm + k, mask=inside, other=0.0) if HAS_NORM else 0.0
    dtype = output.dtype.element_ty
    _wait_for_inputs(IS_EARLY)
    for row in tl.static_range(ROWS):
        value = tl.load(inputs + row * NUM_INPUTS + k, mask=inside, other=0.0)
        scale = 1.0
        if HAS_NORM:
            wide = value.to(tl.float32)
            scale = tl.rsqrt(tl.sum(wide * wide, 0) / NUM_INPUTS + EPSILON)
            value = value * factor
        wide = value.to(tl.float32)[None, :]
        result = (tl.sum(part.to(tl.float32) * wide, 1) * scale).to(dtype)
        if IS_GATED:
            second = (tl.sum(other.to(tl.float32) * wide, 1) * scale).to(dtype)
            first = result.to(tl.float32)
            result = (first * tl.sigmoid(first)).to(dtype) * second
        target = row * NUM_OUTPUTS + column
        if HAS_RESIDUAL:
            result += tl.load(residual + target, mask=here, other=0.0)
        tl.store(output + target, result, mask=here)


def _few_rows(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    num_outputs: int,
    norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """A product whose weights are held in registers, all of a program's at once."""
    num_rows, num_inputs = inputs.shape
    is_gated = len(weight) != num_outputs
    output = inputs.new_empty(num_rows, num_outputs)
    input_block = triton.next_power_of_2(num_inputs)
    block = max(1, TILE // input_block)
    _linear[(triton.cdiv(num_outputs, block),)](
        inputs, weight, inputs if norm is None else norm, inputs if residual is None else residual,
        output, EPSILON=epsilon, NUM_OUTPUTS=num_outputs, NUM_INPUTS=num_inputs,
        HAS_NORM=norm is not None, HAS_RESIDUAL=residual is not None, IS_GATED=is_gated,
        ROWS=num_rows, BLOCK=block, INPUT_BLOCK=input_block, num_warps=4,
        IS_EARLY=STARTS_EARLY, **EARLY,
    )  # fmt: skip
    return output


@triton.jit
def _multiply(
    inputs, weight, residual, output, NUM_ROWS, NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, INPUT_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, INPUT_BLOCK)
    is_row, is_column = row < NUM_ROWS, column < NUM_OUTPUTS
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, NUM_INPUTS, INPUT_BLOCK):
        inside = first + k < NUM_INPUTS
        left = tl.load(
            inputs + row[:, None] * NUM_INPUTS + first + k[None, :],
            mask=is_row[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(
            weight + column[None, :] * NUM_INPUTS + first + k[:, None],
            mask=is_column[None, :] & inside[:, None], other=0.0,
        )  # fmt: skip
        total = tl.dot(left, right, total, input_precision="ieee")
    place = row[:, None] * NUM_OUTPUTS + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    if HAS_RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + place, total.to(output.dtype.element_ty), mask=mask)


def invariant_linear(
    inputs: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """inputs [B, k] times weight [n, k], and residual [B, n]: a row is the same for any B.

    Its sum is made in the same order by the same tile, whatever other rows are in it.
    """
    (num_rows, num_inputs), num_outputs = inputs.shape, len(weight)
    output = inputs.new_empty(num_rows, num_outputs)
    rows, block = 64, 32
    _multiply[(triton.cdiv(num_outputs, block), triton.cdiv(num_rows, rows))](
        inputs, weight, inputs if residual is None else residual, output, num_rows,
        NUM_OUTPUTS=num_outputs, NUM_INPUTS=num_inputs, HAS_RESIDUAL=residual is not None,
        ROWS=rows, BLOCK=block, INPUT_BLOCK=64, num_warps=4, num_stages=4,
    )  # fmt: skip
    return output


def linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """inputs [B, k] times weight [n, k], and bias [n]."""
    if not IS_INVARIANT:
        return functional.linear(inputs, weight, bias)
    added = None if bias is None else bias.expand(len(inputs), -1).contiguous()
    return invariant_linear(inputs.contiguous(), weight, added)


@triton.jit
def _normalise(
    hidden, norm, output, EPSILON: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    _let_next_start(IS_EARLY)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    factor = tl.load(norm + column, mask=inside, other=0.0)
    _wait_for_inputs(IS_EARLY)
    place = tl.program_id(0) * SIZE + column
    value = tl.load(hidden + place, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + EPSILON)
    tl.store(output + place, (wide * scale).to(value.dtype) * factor, mask=inside)


def _normal(hidden: torch.Tensor, norm: torch.Tensor, epsilon: float) -> torch.Tensor:
    num_rows, size = hidden.shape
    output = torch.empty_like(hidden)
    _normalise[(num_rows,)](
        hidden, norm, output, EPSILON=epsilon, SIZE=size, BLOCK=triton.next_power_of_2(size),
        IS_EARLY=STARTS_EARLY, **EARLY,
    )  # fmt: skip
    return output


@triton.jit
def _gate(gate_and_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_EARLY: tl.constexpr):
    _let_next_start(IS_EARLY)
    _wait_for_inputs(IS_EARLY)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    first = tl.load(gate_and_up + row * 2 * SIZE + column, mask=inside, other=0.0)
    second = tl.load(gate_and_up + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0)
    wide = first.to(tl.float32)
    activated = (wide * tl.sigmoid(wide)).to(first.dtype)
    tl.store(output + row * SIZE + column, activated * second, mask=inside)


def normal_linear(
    hidden: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor
) -> torch.Tensor:
    """The RMS norm of hidden [B, k] times weight [n, k]: [B, n]."""
    if len(hidden) <= FEW_ROWS:
        return _few_rows(hidden, weight, len(weight), norm, epsilon)
    return linear(_normal(hidden, norm, epsilon), weight)


def normal_gated_linear(
    hidden: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor
) -> torch.Tensor:
    """silu(first half) * second half of the RMS norm times weight [2 n, k]: [B, n]."""
    size = len(weight) // 2
    if len(hidden) <= FEW_ROWS:
        return _few_rows(hidden, weight, size, norm, epsilon)
    both = linear(_normal(hidden, norm, epsilon), weight)
    output = both.new_empty(len(hidden), size)
    _gate[(len(hidden), triton.cdiv(size, 1024))](
        both, output, SIZE=size, BLOCK=1024, IS_EARLY=STARTS_EARLY, **EARLY
    )
    return output


def linear_add(values: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """residual [B, n] + values [B, k] times weight [n, k]; it may be written over residual.

    cuBLAS adds to what its output has in it: another output would first be a copy of residual.
    """
    if len(values) <= FEW_ROWS:
        return _few_rows(values, weight, len(weight), residual=residual)
    if IS_INVARIANT:
        return invariant_linear(values, weight, residual)
    return residual.addmm_(values, weight.t())


@triton.jit
def _normal_and_rotated(
    source, norm, rotations, ROTATION_SIZE, EPSILON: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    value = tl.load(source + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + EPSILON)
    partner = (column + SIZE // 2) % SIZE
    other = tl.load(source + partner, mask=inside, other=0.0).to(tl.float32)
    own = (wide * scale).to(value.dtype) * tl.load(norm + column, mask=inside, other=0.0)
    other = (other * scale).to(value.dtype) * tl.load(norm + partner, mask=inside, other=0.0)
    other = tl.where(column < SIZE // 2, -other, other)
    cos = tl.load(rotations + column, mask=inside, other=0.0)
    sin = tl.load(rotations + ROTATION_SIZE + column, mask=inside, other=0.0)
    return own * cos + other * sin


@triton.jit(do_not_specialize=["position"])
def _attend(
    projected, query_norm, key_norm, rotations, cache, output, position, CACHE_SIZE, SCALE,
    EPSILON: tl.constexpr, NUM_NEW: tl.constexpr, NUM_POSITIONS: tl.constexpr,
    NUM_HEADS: tl.constexpr, NUM_KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    _let_next_start(IS_EARLY)
    row = tl.program_id(0)
    key_head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    rotation_size = NUM_POSITIONS * SIZE
    cache += row * NUM_POSITIONS * NUM_KEY_HEADS * SIZE + key_head * SIZE
    known = tl.arange(0, BLOCK_POSITIONS)
    place = known[:, None] * NUM_KEY_HEADS * SIZE + column[None, :]
    mask = (known < position)[:, None] & inside[None, :]
    _wait_for_inputs(IS_EARLY)
    keys = tl.load(cache + place, mask=mask, other=0.0).to(tl.float32)
    values = tl.load(cache + CACHE_SIZE + place, mask=mask, other=0.0).to(tl.float32)
    group: tl.constexpr = NUM_HEADS // NUM_KEY_HEADS
    for number in tl.static_range(NUM_NEW):
        here = position + number
        token = row * NUM_NEW + number
        source = projected + token * (NUM_HEADS + 2 * NUM_KEY_HEADS) * SIZE
        rotation = rotations + here * SIZE
        key = _normal_and_rotated(
            source + (NUM_HEADS + key_head) * SIZE, key_norm, rotation, rotation_size, EPSILON,
            SIZE, BLOCK,
        )  # fmt: skip
        value_place = source + (NUM_HEADS + NUM_KEY_HEADS + key_head) * SIZE + column
        value = tl.load(value_place, mask=inside, other=0.0)
        new = cache + here * NUM_KEY_HEADS * SIZE + column
        tl.store(new, key, mask=inside)
        tl.store(new + CACHE_SIZE, value, mask=inside)
        # A new token is taken from here: what was just stored may not be there yet.
        is_new = (known == here)[:, None]
        keys = tl.where(is_new, key.to(tl.float32)[None, :], keys)
        values = tl.where(is_new, value.to(tl.float32)[None, :], values)
        for member in tl.static_range(group):
            head = key_head * group + member
            query = _normal_and_rotated(
                source + head * SIZE, query_norm, rotation, rotation_size, EPSILON, SIZE, BLOCK
            )
            score = tl.sum(keys * query.to(tl.float32)[None, :], 1) * SCALE
            score = tl.where(known <= here, score, float("-inf"))
            weight = tl.exp(score - tl.max(score, 0))
            weight = weight / tl.sum(weight, 0)
            result = tl.sum(values * weight[:, None], 0)
            target = output + (token * NUM_HEADS + head) * SIZE + column
            tl.store(target, result.to(output.dtype.element_ty), mask=inside)


def attend(
    projected: torch.Tensor,
    query_norm: torch.Tensor,
    key_norm: torch.Tensor,
    epsilon: float,
    cache: torch.Tensor,
    position: int,
    rotations: torch.Tensor,
) -> torch.Tensor:
    """Attention [B * n, heads * head_dim] of n new tokens a row, each over those up to it."""
    num_tokens, num_projected, size = projected.shape
    num_rows, num_positions, num_key_heads = cache.shape[1:4]
    num_heads = num_projected - 2 * num_key_heads
    output = projected.new_empty(num_tokens, num_heads * size)
    _attend[(num_rows, num_key_heads)](
        projected, query_norm, key_norm, rotations, cache, output, position, cache[0].numel(),
        size**-0.5, EPSILON=epsilon, NUM_NEW=num_tokens // num_rows, NUM_POSITIONS=num_positions,
        NUM_HEADS=num_heads, NUM_KEY_HEADS=num_key_heads, SIZE=size,
        BLOCK=triton.next_power_of_2(size), BLOCK_POSITIONS=triton.next_power_of_2(num_positions),
        num_warps=1, IS_EARLY=STARTS_EARLY, **EARLY,
    )  # fmt: skip
    return output


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
    _let_next_start(IS_EARLY)
    _wait_for_inputs(IS_EARLY)
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
