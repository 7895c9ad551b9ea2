# mypy: disable-error-code="no-untyped-def,import-untyped,assignment,misc,var-annotated"
# ruff: noqa: RUF005 (what Triton compiles has no unpacking)
"""BigVGAN's layers (arXiv:2206.04658) for whole windows, one kernel each.

Tensors are channels-last [B, n, C], so a convolution is a product of rows that lie one after
another. Sums, filters and snakes are float32; what is stored has the dtype of the window, and no
value beyond that dtype's largest.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from omnistage.stages.vocoder.layers.products import Product, Wave
from omnistage.stages.vocoder.layers.sound_kernels import IS_INTERPRETED, Tiles, sine

FILTER_SIZE = 12  # taps of the filters around a snake; both go by a ratio of 2
STEPS = 16  # that one lane of the activation makes of one channel
LANES = 256  # of one program
NUM_PROCESSORS = 132  # of an H100 or H200: fewer programs leave some of them idle


@dataclass(frozen=True, slots=True)
class Activation:
    """A snake between two filters, float32 [2 * FILTER_SIZE]: the upsampling one goes first."""

    wave: Wave
    filters: torch.Tensor


@triton.jit
def _store(target, value, limit, mask):
    value = tl.minimum(tl.maximum(value, -limit), limit)
    tl.store(target, value.to(target.dtype.element_ty), mask=mask)


@triton.jit
def _activated(value, alpha, inverse_beta, IS_INTERPRETED: tl.constexpr):
    wave = sine(value * alpha, IS_INTERPRETED)
    return value + wave * wave * inverse_beta


@triton.jit(do_not_specialize=["NUM_PIECES", "PIECES_EACH", "LENGTH", "LIMIT"])
def _activate(
    inputs, filters, alpha, inverse_beta, output, NUM_PIECES, PIECES_EACH, LENGTH, LIMIT,
    WIDTH: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr, IS_INTERPRETED: tl.constexpr,
):  # fmt: skip
    # A lane makes STEPS rows of one channel: of a stream's piece of so many rows.
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    channel = lane % WIDTH
    piece = lane // WIDTH
    is_piece = piece < NUM_PIECES
    start = piece % PIECES_EACH * STEPS
    place = piece // PIECES_EACH * LENGTH * WIDTH + channel
    factor = tl.load(alpha + channel)
    scale = tl.load(inverse_beta + channel)
    # All loads go first: no store then holds one up.
    window = ()
    for number in tl.static_range(STEPS + 10):
        row = tl.minimum(tl.maximum(start + (number - 5), 0), LENGTH - 1)
        window = window + (tl.load(inputs + place + row * WIDTH, mask=is_piece, other=0.0),)
    first = tl.load(inputs + place, mask=is_piece, other=0.0).to(tl.float32)
    second = tl.minimum(LENGTH - 1, 1) * WIDTH
    second = tl.load(inputs + place + second, mask=is_piece, other=0.0).to(tl.float32)
    third = tl.minimum(LENGTH - 1, 2) * WIDTH
    third = tl.load(inputs + place + third, mask=is_piece, other=0.0).to(tl.float32)
    up = ()
    down = ()
    for tap in tl.static_range(12):
        up = up + (2.0 * tl.load(filters + tap),)
        down = down + (tl.load(filters + 12 + tap),)
    # What is repeated before the first value of the upsampled signal.
    edge = first * (up[5] + up[7] + up[9] + up[11]) + second * up[3] + third * up[1]
    edge = _activated(edge, factor, scale, IS_INTERPRETED)
    # The latest twelve values of the upsampled signal; the first one made is its 2 * start - 5.
    recent = ()
    for number in tl.static_range(2 * STEPS + 10):
        value = tl.zeros((LANES,), tl.float32)
        for tap in tl.static_range(6):
            step = window[number // 2 + tap].to(tl.float32)
            value += step * up[10 + number % 2 - 2 * tap]
        value = _activated(value, factor, scale, IS_INTERPRETED)
        if number < 5:
            value = tl.where(2 * start + (number - 5) < 0, edge, value)
        else:
            value = tl.where(2 * start + (number - 5) < 2 * LENGTH, value, recent[-1])
        recent = recent[-11:] + (value,)
        if number >= 11 and number % 2 == 1:
            result = tl.zeros((LANES,), tl.float32)
            for tap in tl.static_range(12):
                result += recent[tap] * down[tap]
            row = start + (number - 11) // 2
            _store(output + place + row * WIDTH, result, LIMIT, is_piece & (row < LENGTH))


def activate(
    hidden: torch.Tensor, activation: Activation, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The alias-free activation of hidden [B, n, C], in its own dtype if no other is asked for.

    The signal is upsampled by 2, goes through the snake, and is downsampled again; before each
    filter its first and last values are repeated. A lane keeps in registers what several rows
    need; only at the ends of its `STEPS` rows others compute the same.
    """
    num_streams, length, width = hidden.shape
    output = torch.empty_like(hidden, dtype=dtype)
    pieces_each = triton.cdiv(length, STEPS)
    num_pieces = num_streams * pieces_each
    _activate[(triton.cdiv(num_pieces * width, LANES),)](
        hidden, activation.filters, activation.wave.alpha, activation.wave.inverse_beta, output,
        num_pieces, pieces_each, length, torch.finfo(output.dtype).max, WIDTH=width, STEPS=STEPS,
        LANES=LANES, IS_INTERPRETED=IS_INTERPRETED, num_warps=4,
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize=["NUM_ROWS", "LENGTH", "NUM_TAPS", "FIRST", "STEP", "SCALE", "LIMIT"])
def _convolve(
    inputs, weight, bias, residual, total, output, NUM_ROWS, LENGTH, NUM_TAPS, FIRST, STEP, SCALE,
    LIMIT, TAP_STRIDE: tl.constexpr, INPUT_STRIDE: tl.constexpr, NUM_INPUTS: tl.constexpr,
    WIDTH: tl.constexpr, FACTOR: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_TOTAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    NUM_OUTPUTS: tl.constexpr = WIDTH * FACTOR
    num_tiles: tl.constexpr = (NUM_OUTPUTS + BLOCK_OUTPUTS - 1) // BLOCK_OUTPUTS
    num_parts: tl.constexpr = (NUM_INPUTS + BLOCK_INPUTS - 1) // BLOCK_INPUTS
    program = tl.program_id(0)
    row = program // num_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = program % num_tiles * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row = row < NUM_ROWS
    is_column = column < NUM_OUTPUTS
    time = row % LENGTH
    k = tl.arange(0, BLOCK_INPUTS)
    sources = inputs + row[:, None] * NUM_INPUTS + k[None, :]
    weights = weight + k[:, None] * INPUT_STRIDE + column[None, :]
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for number in range(NUM_TAPS * num_parts):
        tap = number // num_parts
        first = number % num_parts * BLOCK_INPUTS
        shift = FIRST + tap * STEP
        is_inside = is_row & (time + shift >= 0) & (time + shift < LENGTH)
        here = is_inside[:, None]
        there = is_column[None, :]
        if NUM_INPUTS % BLOCK_INPUTS != 0:
            here = here & (first + k < NUM_INPUTS)[None, :]
            there = there & (first + k < NUM_INPUTS)[:, None]
        left = tl.load(sources + (shift * NUM_INPUTS + first), mask=here, other=0.0)
        place = tap * TAP_STRIDE + first * INPUT_STRIDE
        right = tl.load(weights + place, mask=there, other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    channel = column % WIDTH
    sums += tl.load(bias + channel, mask=is_column, other=0.0).to(tl.float32)[None, :]
    here = is_row[:, None] & is_column[None, :]
    place = row[:, None] * NUM_OUTPUTS + column[None, :]
    if HAS_RESIDUAL:
        sums += tl.load(residual + place, mask=here, other=0.0).to(tl.float32)
    if HAS_TOTAL:
        sums += tl.load(total + place, mask=here, other=0.0).to(tl.float32)
    _store(output + place, sums * SCALE, LIMIT, here)


def convolve(
    hidden: torch.Tensor,
    product: Product,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """A convolution of hidden [B, n, inputs]: [B, n * factor, width].

    Rows before and behind a window are zeros. `residual` and `total`, of the result's shape, are
    added to it; the sum is multiplied by `scale`.
    """
    num_streams, length, num_inputs = hidden.shape
    width, factor = product.width, product.factor
    output = hidden.new_empty(num_streams, length * factor, width)
    num_rows, num_outputs = num_streams * length, width * factor
    cut = tiles_for(num_rows, num_outputs, num_inputs)
    grid = (triton.cdiv(num_rows, cut.rows) * triton.cdiv(num_outputs, cut.outputs),)
    _convolve[grid](
        hidden, product.weight, product.bias, hidden if residual is None else residual,
        hidden if total is None else total, output, num_rows, length, product.num_taps,
        product.first, product.step, scale, torch.finfo(output.dtype).max,
        TAP_STRIDE=product.tap_stride, INPUT_STRIDE=product.input_stride,
        NUM_INPUTS=num_inputs, WIDTH=width, FACTOR=factor, HAS_RESIDUAL=residual is not None,
        HAS_TOTAL=total is not None, BLOCK_ROWS=cut.rows, BLOCK_OUTPUTS=cut.outputs,
        BLOCK_INPUTS=cut.inputs, num_warps=cut.num_warps, num_stages=cut.num_stages,
    )  # fmt: skip
    return output


def tiles_for(num_rows: int, num_outputs: int, num_inputs: int) -> Tiles:
    """Large ones if they give every processor something to do, else small ones."""
    inputs = 64 if num_inputs % 64 == 0 else 32
    outputs = 32 if num_outputs <= 32 else 64 if num_outputs <= 64 or num_outputs == 192 else 128
    num_programs = triton.cdiv(num_rows, 128) * triton.cdiv(num_outputs, outputs)
    if num_programs < NUM_PROCESSORS:
        return Tiles(64, min(outputs, 64), inputs, 4, 4)
    return Tiles(128, outputs, inputs, 8 if outputs == 128 else 4, 3)
