# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""Kernels for a transformer with a carried window, in half precision on a GPU.

One kernel ends a branch: it adds it to the float32 states and writes their norm, which the next
product reads. Sums, norms and rotations are float32. `attention_kernels.py` attends.
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["NUM_ROWS", "LENGTH"])
def _rotations(
    positions, frequencies, output, NUM_ROWS, LENGTH,
    SCALING: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < NUM_ROWS
    position = tl.load(positions + row // LENGTH, mask=is_row, other=0) + row % LENGTH
    column = tl.arange(0, HALF)
    angle = position.to(tl.float32)[:, None] * tl.load(frequencies + column)[None, :]
    place = output + row[:, None] * (2 * HALF) + column[None, :]
    tl.store(place, tl.cos(angle) * SCALING, mask=is_row[:, None])
    tl.store(place + HALF, tl.sin(angle) * SCALING, mask=is_row[:, None])


def rotations(
    positions: torch.Tensor, frequencies: torch.Tensor, num_new: int, scaling: float
) -> torch.Tensor:
    """Cosines and, behind them, sines of new frames: float32 [B * num_new, size of a head].

    `positions`: int64 [B], of the first new frames. `frequencies`: float32, half a head.
    """
    num_rows, half = len(positions) * num_new, len(frequencies)
    output = torch.empty(num_rows, 2 * half, dtype=torch.float32, device=positions.device)
    rows = 8
    _rotations[(triton.cdiv(num_rows, rows),)](
        positions, frequencies, output, num_rows, num_new, SCALING=scaling, HALF=half, ROWS=rows,
        num_warps=2,
    )  # fmt: skip
    return output


@triton.jit
def _end_branch(
    hidden, branch, scale, weight, states, output,
    EPSILON: tl.constexpr, WIDTH: tl.constexpr, HAS_BRANCH: tl.constexpr,
    HAS_STATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = tl.program_id(0) * WIDTH + column
    value = tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        factor = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        value += factor * tl.load(branch + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_STATES:
        tl.store(states + place, value, mask=inside)
    mean = tl.sum(value * value, 0) / WIDTH
    value *= tl.rsqrt(mean + EPSILON)
    value *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, value.to(output.dtype.element_ty), mask=inside)


def begin(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 states of hidden [rows, width], and their root mean square norm in its dtype."""
    states = torch.empty_like(hidden, dtype=torch.float32)
    output = torch.empty_like(hidden)
    _launch_end(hidden, None, None, weight, states, output, epsilon)
    return states, output


def end_branch(
    states: torch.Tensor,
    branch: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    *,
    keeps_states: bool = True,
) -> torch.Tensor:
    """The norm of float32 states [rows, width] plus scale * branch, in the branch's dtype.

    The states become that sum if they are kept.
    """
    output = torch.empty_like(branch)
    _launch_end(states, branch, scale, weight, states if keeps_states else None, output, epsilon)
    return output


def _launch_end(
    hidden: torch.Tensor,
    branch: torch.Tensor | None,
    scale: torch.Tensor | None,
    weight: torch.Tensor,
    states: torch.Tensor | None,
    output: torch.Tensor,
    epsilon: float,
) -> None:
    num_rows, width = hidden.shape
    _end_branch[(num_rows,)](
        hidden, hidden if branch is None else branch, weight if scale is None else scale, weight,
        hidden if states is None else states, output, EPSILON=epsilon, WIDTH=width,
        HAS_BRANCH=branch is not None, HAS_STATES=states is not None,
        BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip


@triton.jit
def _gate(inputs, output, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    num_blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // num_blocks
    column = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = inputs + row * (2 * WIDTH) + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    value *= gate / (1.0 + tl.exp(-gate))
    tl.store(output + row * WIDTH + column, value.to(output.dtype.element_ty), mask=inside)


def gate(inputs: torch.Tensor) -> torch.Tensor:
    """Computes silu(gates) * values, side by side in [rows, 2 * width]."""
    num_rows, width = inputs.shape[0], inputs.shape[1] // 2
    output = inputs.new_empty(num_rows, width)
    block = 1024
    _gate[(num_rows * triton.cdiv(width, block),)](
        inputs, output, WIDTH=width, BLOCK=block, num_warps=4
    )
    return output
