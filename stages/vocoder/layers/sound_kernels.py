# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""The convolutions of a sound decoder as products with fused ends, in half precision on a GPU.

Tensors are channels-last, so a convolution is a product of rows that lie one after another: each
tap reads the same rows a step further on. What follows a convolution is done with its results
while they are in registers: the bias, the residual, the snake (BigVGAN, arXiv:2206.04658) that the
next convolution reads, and the zeros that a stream's beginning must have there. Sums and snakes
are float32.
"""

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from omnistage.stages.vocoder.layers.products import Product, Wave

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MIN_WIDTH = 32  # channels come in multiples of it


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut: rows, outputs, inputs at a time; warps; loads under way."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


@triton.jit
def sine(angle, IS_INTERPRETED: tl.constexpr):
    """The fast one of the GPU; the interpreter has only the exact one."""
    return tl.sin(angle) if IS_INTERPRETED else libdevice.fast_sinf(angle)


@triton.jit(do_not_specialize=["NUM_ROWS", "LENGTH", "CONTEXT", "FIRST", "STEP", "NEXT_CONTEXT"])
def _convolve(
    inputs, weight, bias, residual, alpha, inverse_beta, started, raw, output,
    NUM_ROWS, LENGTH, CONTEXT, FIRST, STEP, NEXT_CONTEXT, NUM_MUTED,
    TAP_STRIDE: tl.constexpr, INPUT_STRIDE: tl.constexpr, NUM_TAPS: tl.constexpr,
    NUM_INPUTS: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_RAW: tl.constexpr, HAS_MUTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):  # fmt: skip
    NUM_OUTPUTS: tl.constexpr = WIDTH * FACTOR
    num_tiles: tl.constexpr = (NUM_OUTPUTS + BLOCK_OUTPUTS - 1) // BLOCK_OUTPUTS
    program = tl.program_id(0)
    row = program // num_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = program % num_tiles * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row = row < NUM_ROWS
    is_column = column < NUM_OUTPUTS
    stream = tl.minimum(row, NUM_ROWS - 1) // LENGTH
    time = tl.minimum(row, NUM_ROWS - 1) % LENGTH
    k = tl.arange(0, BLOCK_INPUTS)
    sources = inputs + (stream * (CONTEXT + LENGTH) + time + FIRST)[:, None] * NUM_INPUTS
    sources += k[None, :]
    weights = weight + k[:, None] * INPUT_STRIDE + column[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    num_parts: tl.constexpr = NUM_INPUTS // BLOCK_INPUTS
    for number in range(NUM_TAPS * num_parts):
        tap = number // num_parts
        first = number % num_parts * BLOCK_INPUTS
        left = tl.load(sources + (tap * STEP * NUM_INPUTS + first))
        place = tap * TAP_STRIDE + first * INPUT_STRIDE
        if NUM_OUTPUTS % BLOCK_OUTPUTS == 0:
            right = tl.load(weights + place)
        else:
            right = tl.load(weights + place, mask=is_column[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    channel = column % WIDTH
    total += tl.load(bias + channel, mask=is_column, other=0.0).to(tl.float32)[None, :]
    here = is_row[:, None] & is_column[None, :]
    place = row[:, None] * NUM_OUTPUTS + column[None, :]
    dtype = output.dtype.element_ty
    if HAS_RESIDUAL:
        total += tl.load(residual + place, mask=here, other=0.0).to(tl.float32)
    if HAS_RAW:
        tl.store(raw + place, total.to(dtype), mask=here)
    total = total.to(dtype).to(tl.float32)
    factor = tl.load(alpha + channel, mask=is_column, other=0.0)[None, :]
    scale = tl.load(inverse_beta + channel, mask=is_column, other=0.0)[None, :]
    wave = sine(total * factor, IS_INTERPRETED)
    result = total + wave * wave * scale
    if HAS_MUTED:
        is_new = tl.load(started + stream).to(tl.float32) == 0.0
        step = time[:, None] * FACTOR + (column // WIDTH)[None, :]
        result = tl.where((step < NUM_MUTED) & is_new[:, None], 0.0, result)
    target = stream * (NEXT_CONTEXT + LENGTH * FACTOR) + NEXT_CONTEXT + time * FACTOR
    tl.store(output + target[:, None] * WIDTH + column[None, :], result.to(dtype), mask=here)


def convolve(
    padded: torch.Tensor,
    product: Product,
    wave: Wave,
    started: torch.Tensor,
    num_context: int,
    next_context: int,
    num_muted: int = 0,
    residual: torch.Tensor | None = None,
    *,
    has_raw: bool = False,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A convolution of padded [B, num_context + n, inputs], and the snake behind it.

    Returns [B, next_context + n * factor, width], whose first `next_context` rows are for the
    caller to fill, and what the snake has read, [B, n * factor, width], if `has_raw`. Of streams
    that `started` [B] says are new the first `num_muted` rows are zeros.
    """
    num_streams, padded_length, num_inputs = padded.shape
    length = padded_length - num_context
    out_length = length * product.factor
    output = padded.new_empty(num_streams, next_context + out_length, product.width)
    raw = padded.new_empty(num_streams, out_length, product.width) if has_raw else None
    num_rows, num_outputs = num_streams * length, product.width * product.factor
    cut = tiles or tiles_for(num_rows, num_outputs, num_inputs, product.num_taps)
    grid = (triton.cdiv(num_rows, cut.rows) * triton.cdiv(num_outputs, cut.outputs),)
    _convolve[grid](
        padded, product.weight, product.bias, padded if residual is None else residual,
        wave.alpha, wave.inverse_beta, started, output if raw is None else raw, output,
        num_rows, length, num_context, product.first, product.step, next_context, num_muted,
        TAP_STRIDE=product.tap_stride, INPUT_STRIDE=product.input_stride,
        NUM_TAPS=product.num_taps, NUM_INPUTS=num_inputs, WIDTH=product.width,
        FACTOR=product.factor, HAS_RESIDUAL=residual is not None, HAS_RAW=raw is not None,
        HAS_MUTED=num_muted > 0, BLOCK_ROWS=cut.rows, BLOCK_OUTPUTS=cut.outputs,
        BLOCK_INPUTS=cut.inputs, IS_INTERPRETED=IS_INTERPRETED, num_warps=cut.num_warps,
        num_stages=cut.num_stages,
    )  # fmt: skip
    return output, raw


def tiles_for(num_rows: int, num_outputs: int, num_inputs: int, num_taps: int) -> Tiles:
    """About the fastest of two dozen that were measured on an H200.

    Few rows are cut finely, so that enough programs read the weights at once.
    """
    inputs = 64 if num_inputs % 64 == 0 else 32
    is_wide = num_outputs >= 1536
    if num_rows <= 192:
        if num_inputs % 128 == 0:
            return Tiles(16, 64 if num_taps == 2 else 32, 128, 4, 4)
        return Tiles(32, 32, inputs, 4, 5)
    if num_rows <= 1024:
        is_widest = num_outputs >= 4096
        return Tiles(128, 64, inputs, 4, 4) if is_widest else Tiles(64, 32, inputs, 4, 5)
    if num_rows <= 2560 and not is_wide:
        return Tiles(64, 64 if inputs == 64 else 32, inputs, 4, 4)
    if inputs == 32:
        return Tiles(128, 128, inputs, 4, 4)
    if num_taps == 1 and num_outputs <= 192:
        return Tiles(128, 64, inputs, 4, 4)
    return Tiles(128, 128, inputs, 8, 3)


@triton.jit(do_not_specialize=["NUM_ROWS", "LENGTH", "CONTEXT"])
def _to_samples(
    inputs, weight, bias, output, NUM_ROWS, LENGTH, CONTEXT, NUM_TAPS: tl.constexpr,
    NUM_INPUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = row < NUM_ROWS
    stream = tl.minimum(row, NUM_ROWS - 1) // LENGTH
    time = tl.minimum(row, NUM_ROWS - 1) % LENGTH
    k = tl.arange(0, BLOCK_INPUTS)
    is_input = k < NUM_INPUTS
    sources = inputs + (stream * (CONTEXT + LENGTH) + time)[:, None] * NUM_INPUTS + k[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_INPUTS), tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        left = tl.load(sources + tap * NUM_INPUTS, mask=is_input[None, :], other=0.0)
        factor = tl.load(weight + tap * NUM_INPUTS + k, mask=is_input, other=0.0)
        total += left.to(tl.float32) * factor.to(tl.float32)[None, :]
    sample = tl.sum(total, 1) + tl.load(bias).to(tl.float32)
    sample = tl.minimum(tl.maximum(sample, -1.0), 1.0)
    tl.store(output + row, sample, mask=is_row)


def to_samples(padded: torch.Tensor, product: Product, num_context: int) -> torch.Tensor:
    """The convolution of padded [B, num_context + n, inputs] to one channel: float32 [B, n]."""
    num_streams, padded_length, num_inputs = padded.shape
    length = padded_length - num_context
    output = torch.empty(num_streams, length, device=padded.device)
    block = 64
    _to_samples[(triton.cdiv(num_streams * length, block),)](
        padded, product.weight, product.bias, output, num_streams * length, length, num_context,
        NUM_TAPS=product.num_taps, NUM_INPUTS=num_inputs, BLOCK_ROWS=block,
        BLOCK_INPUTS=triton.next_power_of_2(num_inputs), num_warps=4,
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize=["LENGTH"])
def _carry(
    padded, context, LENGTH, STATE_STRIDE: tl.constexpr, NUM_PAST: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    num_blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    stream = tl.program_id(0) // num_blocks
    column = tl.program_id(0) % num_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    here = (row < NUM_PAST) & (column < WIDTH)
    is_old = here & (row + LENGTH < NUM_PAST)
    is_new = here & (row + LENGTH >= NUM_PAST)
    kept = context + stream.to(tl.int64) * STATE_STRIDE + row * WIDTH + column
    place = padded + stream.to(tl.int64) * (NUM_PAST + LENGTH) * WIDTH + row * WIDTH + column
    # The program owns its channels. All is in registers before any of it is written.
    before = tl.load(kept, mask=here, other=0.0)
    old = tl.load(kept + LENGTH * WIDTH, mask=is_old, other=0.0)
    new = tl.load(place + LENGTH * WIDTH, mask=is_new, other=0.0)
    tl.debug_barrier()
    tl.store(place, before, mask=here)
    tl.store(kept, tl.where(is_old, old, new), mask=here)


def carry(padded: torch.Tensor, context: torch.Tensor) -> None:
    """Put the context [B, k, C] into the first rows of padded [B, k + n, C]; it becomes the last k.

    Streams may lie apart in the context.
    """
    num_streams, num_past, width = context.shape
    columns = 64
    _carry[(num_streams * triton.cdiv(width, columns),)](
        padded, context, padded.shape[1] - num_past, STATE_STRIDE=context.stride(0),
        NUM_PAST=num_past, WIDTH=width, ROWS=max(triton.next_power_of_2(num_past), 2),
        COLUMNS=columns, num_warps=4 if num_past > 8 else 1,
    )  # fmt: skip
