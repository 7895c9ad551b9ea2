# mypy: disable-error-code="no-untyped-def,import-untyped"
"""The code predictor's products, one CUDA kernel a step, and how one starts before the last ends.

A kernel starts while the one before it still runs (programmatic dependent launch) and waits for it
only before it reads what it wrote; weights are read before that.
"""

import os

import torch
import triton
import triton.language as tl
from torch.nn import functional

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
def wait_for_inputs(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(IS_EARLY: tl.constexpr):
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _linear(
    inputs, weight, norm, residual, output, EPSILON: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, IS_GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    INPUT_BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_EARLY)
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
    wait_for_inputs(IS_EARLY)
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
    let_next_start(IS_EARLY)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    factor = tl.load(norm + column, mask=inside, other=0.0)
    wait_for_inputs(IS_EARLY)
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
    let_next_start(IS_EARLY)
    wait_for_inputs(IS_EARLY)
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
