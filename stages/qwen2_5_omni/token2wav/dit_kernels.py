# mypy: disable-error-code="no-untyped-def,import-untyped"
"""Two kernels for the DiT's work between matrix products, in half precision on a GPU.

One ends a branch: it adds the gated branch to the float32 states, and writes what the next product
reads of them, their norm with the scale and the shift of their time (adaLN-Zero, arXiv:2212.09748).
The other attends: it reads queries, keys and values as their one product leaves them, of a block
and of its neighbour. Sums, norms, rotations and weights are float32.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import COLUMNS, NORM_EPS

MIN_SIZE = 16  # of a head, and of what a product on the matrix units sums over
FEW_ROWS = 2048  # so few are spread over as many programs


class Norm(NamedTuple):
    """The norms of each time, float32 [times, width], rows of which may lie apart."""

    scale: torch.Tensor
    shift: torch.Tensor


class Branch(NamedTuple):
    """The addition to states [rows, width], in half precision, by a gate [times, width]."""

    values: torch.Tensor
    gate: torch.Tensor


@triton.jit
def _modulate(
    hidden, branch, gate, scale, shift, times, output,
    TIME_STRIDE: tl.constexpr, GATE_STRIDE: tl.constexpr, NORM_STRIDE: tl.constexpr,
    EPSILON: tl.constexpr, ROWS_PER_BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    HAS_BRANCH: tl.constexpr, KEEPS_HIDDEN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    time = tl.load(times + first // ROWS_PER_BLOCK * TIME_STRIDE).to(tl.int32)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = (first + tl.arange(0, ROWS))[:, None] * WIDTH + column[None, :]
    mask = inside[None, :]
    value = tl.load(hidden + place, mask=mask, other=0.0)
    if HAS_BRANCH:
        added = tl.load(branch + place, mask=mask, other=0.0).to(tl.float32)
        factor = tl.load(gate + time * GATE_STRIDE + column, mask=inside, other=0.0)
        value += factor[None, :] * added
        if KEEPS_HIDDEN:
            tl.store(hidden + place, value, mask=mask)
    mean = tl.sum(value, 1) / WIDTH
    value = tl.where(mask, value - mean[:, None], 0.0)
    variance = tl.sum(value * value, 1) / WIDTH
    value *= tl.rsqrt(variance + EPSILON)[:, None]
    factor = 1.0 + tl.load(scale + time * NORM_STRIDE + column, mask=inside, other=0.0)
    added = tl.load(shift + time * NORM_STRIDE + column, mask=inside, other=0.0)
    value = value * factor[None, :] + added[None, :]
    tl.store(output + place, value.to(output.dtype.element_ty), mask=mask)


def modulate(
    hidden: torch.Tensor,
    table: torch.Tensor,
    rows_per_block: int,
    norm: Norm,
    dtype: torch.dtype,
    branch: Branch | None = None,
    *,
    keeps_hidden: bool = True,
) -> torch.Tensor:
    """The norm of float32 hidden [rows, width], scaled and shifted, in a dtype.

    A branch is added before it, and to hidden itself if that is needed again. `table`: the list's
    blocks, each of so many rows.
    """
    num_rows, width = hidden.shape
    output = torch.empty_like(hidden, dtype=dtype)
    rows = 1 if num_rows <= FEW_ROWS or rows_per_block % 4 else 4
    gate = norm.scale if branch is None else branch.gate
    _modulate[(num_rows // rows,)](
        hidden, hidden if branch is None else branch.values, gate, norm.scale, norm.shift,
        table[:, COLUMNS.time], output, TIME_STRIDE=table.stride(0), GATE_STRIDE=gate.stride(0),
        NORM_STRIDE=norm.scale.stride(0), EPSILON=NORM_EPS, ROWS_PER_BLOCK=rows_per_block,
        WIDTH=width, HAS_BRANCH=branch is not None, KEEPS_HIDDEN=keeps_hidden, ROWS=rows,
        BLOCK=triton.next_power_of_2(width), num_warps=4 if rows == 1 else 8,
    )  # fmt: skip
    return output


@triton.jit
def _head_of(
    source, STRIDE: tl.constexpr, FRAMES: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr
):
    """[BLOCK, SIZE] of a block's rows; those that it has not are zeros."""
    frame = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    return tl.load(source + frame * STRIDE + column, mask=frame < FRAMES, other=0.0)


@triton.jit
def _turned(
    value, source, cos, sin, position, head, STRIDE: tl.constexpr, FRAMES: tl.constexpr,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """`value` from there; of the first head, which has positions, rotated: pairs become halves."""
    half: tl.constexpr = SIZE // 2
    frame = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    is_frame = frame < FRAMES
    if head == 0:
        pair = source + frame * STRIDE + column % half * 2
        is_second = column // half
        own = tl.load(pair + is_second, mask=is_frame, other=0.0).to(tl.float32)
        other = tl.load(pair + 1 - is_second, mask=is_frame, other=0.0).to(tl.float32)
        place = (position * FRAMES + frame) * SIZE + column
        own *= tl.load(cos + place, mask=is_frame, other=0.0)
        other *= tl.load(sin + place, mask=is_frame, other=0.0)
        value = tl.where(column < half, own - other, own + other).to(value.dtype)
    return value


@triton.jit
def _scores(query, key, num_frames, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK, BLOCK] of the frames that are there."""
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * SCALE
    return tl.where((tl.arange(0, BLOCK) < num_frames)[None, :], score, float("-inf"))


@triton.jit(do_not_specialize=["LAST"])
def _attend(
    projected, cos, sin, table, output, LAST,
    SCALE: tl.constexpr, TABLE_STRIDE: tl.constexpr, POSITION: tl.constexpr,
    NUM_FRAMES: tl.constexpr, NEIGHBOUR: tl.constexpr, LOOKS: tl.constexpr, FRAMES: tl.constexpr,
    NUM_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = NUM_HEADS * SIZE
    stride: tl.constexpr = 3 * width
    line = tl.program_id(0) // NUM_HEADS
    head = tl.program_id(0) % NUM_HEADS
    entry = table + line // 2 * TABLE_STRIDE
    position = tl.load(entry + POSITION).to(tl.int32)
    source = projected + line * FRAMES * stride + head * SIZE
    query = _head_of(source, stride, FRAMES, BLOCK, SIZE)
    key = _head_of(source + width, stride, FRAMES, BLOCK, SIZE)
    value = _head_of(source + 2 * width, stride, FRAMES, BLOCK, SIZE)
    query = _turned(query, source, cos, sin, position, head, stride, FRAMES, BLOCK, SIZE)
    key = _turned(key, source + width, cos, sin, position, head, stride, FRAMES, BLOCK, SIZE)
    score = _scores(query, key, tl.load(entry + NUM_FRAMES).to(tl.int32), SCALE, BLOCK)
    largest = tl.max(score, 1)
    if LOOKS:
        neighbour = tl.load(entry + NEIGHBOUR).to(tl.int32)
        is_there = neighbour >= 0
        neighbour = tl.minimum(tl.maximum(neighbour, 0), LAST)
        entry = table + neighbour * TABLE_STRIDE
        position = tl.load(entry + POSITION).to(tl.int32)
        source = projected + (neighbour * 2 + line % 2) * FRAMES * stride + head * SIZE
        key = _head_of(source + width, stride, FRAMES, BLOCK, SIZE)
        key = _turned(key, source + width, cos, sin, position, head, stride, FRAMES, BLOCK, SIZE)
        num_frames = tl.where(is_there, tl.load(entry + NUM_FRAMES).to(tl.int32), 0)
        beside = _scores(query, key, num_frames, SCALE, BLOCK)
        largest = tl.maximum(largest, tl.max(beside, 1))
    weight = tl.exp(score - largest[:, None])
    total = tl.sum(weight, 1)
    result = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    if LOOKS:
        weight = tl.exp(beside - largest[:, None])
        total += tl.sum(weight, 1)
        value = _head_of(source + 2 * width, stride, FRAMES, BLOCK, SIZE)
        result = tl.dot(weight.to(value.dtype), value, result, input_precision="ieee")
    result = result / total[:, None]
    frame = tl.arange(0, BLOCK)[:, None]
    place = (line * FRAMES + frame) * width + head * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(output + place, result.to(output.dtype.element_ty), mask=frame < FRAMES)


def attend(
    projected: torch.Tensor,
    num_heads: int,
    num_blocks: int,
    table: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    neighbour: int | None,
) -> torch.Tensor:
    """Attention [2 * num_blocks * frames, heads * size] of a list's first blocks.

    `projected` [rows, 3 * heads * size]: queries, keys and values of both rows of guidance of at
    least those and their neighbours; in place of a neighbour that is not among them the last block
    is seen. `cos` and `sin`: float32 [positions, frames, size]. `neighbour`: the column of the
    table that tells whose frames each block sees beside its own.
    """
    frames, size = cos.shape[1:]
    output = projected.new_empty(2 * num_blocks * frames, num_heads * size)
    _attend[(2 * num_blocks * num_heads,)](
        projected, cos, sin, table, output, len(projected) // (2 * frames) - 1,
        SCALE=size**-0.5, TABLE_STRIDE=table.stride(0), POSITION=COLUMNS.position,
        NUM_FRAMES=COLUMNS.num_frames, NEIGHBOUR=0 if neighbour is None else neighbour,
        LOOKS=neighbour is not None, FRAMES=frames, NUM_HEADS=num_heads, SIZE=size,
        BLOCK=max(triton.next_power_of_2(frames), MIN_SIZE), num_warps=2,
    )  # fmt: skip
    return output
