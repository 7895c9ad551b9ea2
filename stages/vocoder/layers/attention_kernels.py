# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""Kernels for attention over a carried window, in half precision on a GPU.

One kernel attends: it reads past keys and values where they lie in the stream's state, and new ones
as the product of queries, keys and values leaves them. One moves the windows of all layers on, when
all have attended. Sums and weights are float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MIN_HALF = 16  # of a head: what a product on the matrix units sums over


@dataclass(frozen=True, slots=True)
class Heads:
    """How many there are of queries, and of keys and values, and their width."""

    queries: int
    keys: int
    size: int


@triton.jit
def _turned(
    source, turns, frame, LENGTH, STRIDE: tl.constexpr, HALF: tl.constexpr, TURNS: tl.constexpr
):
    """Both halves [frames, HALF] of a head's rotated frames; frames that are not there: zeros."""
    column = tl.arange(0, HALF)[None, :]
    is_frame = ((frame >= 0) & (frame < LENGTH))[:, None]
    place = source + frame[:, None] * STRIDE + column
    low = tl.load(place, mask=is_frame, other=0.0)
    high = tl.load(place + HALF, mask=is_frame, other=0.0)
    if TURNS:
        place = turns + frame[:, None] * (2 * HALF) + column
        cos = tl.load(place, mask=is_frame, other=0.0)
        sin = tl.load(place + HALF, mask=is_frame, other=0.0)
        first = low.to(tl.float32)
        second = high.to(tl.float32)
        low = (first * cos - second * sin).to(low.dtype)
        high = (second * cos + first * sin).to(high.dtype)
    return low, high


@triton.jit
def _weigh(score, seen, value, largest, total, result):
    """The running maximum, sum and weighted sum of values (online softmax) with more keys."""
    score = tl.where(seen, score, -1e30)
    above = tl.maximum(largest, tl.max(score, 1))
    weight = tl.where(seen, tl.exp(score - above[:, None]), 0.0)
    factor = tl.exp(largest - above)
    total = total * factor + tl.sum(weight, 1)
    result = result * factor[:, None]
    result = tl.dot(weight.to(value.dtype), value, result, input_precision="ieee")
    return above, total, result


@triton.jit(do_not_specialize=["LENGTH", "NUM_BLOCKS"])
def _attend(
    projected, turns, past, positions, output, LENGTH, NUM_BLOCKS,
    SCALE: tl.constexpr, STATE_STRIDE: tl.constexpr, NUM_PAST: tl.constexpr,
    NUM_HEADS: tl.constexpr, NUM_KEY_HEADS: tl.constexpr, SIZE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    STRIDE: tl.constexpr = (NUM_HEADS + 2 * NUM_KEY_HEADS) * SIZE
    head = tl.program_id(0) % NUM_HEADS
    key_head = head // (NUM_HEADS // NUM_KEY_HEADS)
    first = tl.program_id(0) // NUM_HEADS % NUM_BLOCKS * QUERIES
    stream = tl.program_id(0) // NUM_HEADS // NUM_BLOCKS
    num_before = tl.minimum(tl.load(positions + stream), NUM_PAST).to(tl.int32)
    frames = projected + stream * LENGTH * STRIDE
    turns += stream * LENGTH * SIZE
    query = first + tl.arange(0, QUERIES)
    low, high = _turned(frames + head * SIZE, turns, query, LENGTH, STRIDE, HALF, True)
    largest = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, SIZE), tl.float32)
    half = tl.arange(0, HALF)[None, :]
    column = tl.arange(0, SIZE)[None, :]
    # Past frames: number k is NUM_PAST - k frames before the first new one.
    keys = past + stream.to(tl.int64) * STATE_STRIDE + key_head * (NUM_PAST * SIZE)
    values = keys + NUM_KEY_HEADS * NUM_PAST * SIZE
    begin = tl.maximum(first, NUM_PAST - num_before) // KEYS * KEYS
    for start in range(begin, NUM_PAST, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = (key < NUM_PAST)[:, None]
        place = keys + key[:, None] * SIZE + half
        key_low = tl.load(place, mask=is_key, other=0.0)
        key_high = tl.load(place + HALF, mask=is_key, other=0.0)
        value = tl.load(values + key[:, None] * SIZE + column, mask=is_key, other=0.0)
        score = tl.dot(low, tl.trans(key_low), input_precision="ieee")
        score = tl.dot(high, tl.trans(key_high), score, input_precision="ieee")
        is_there = (key < NUM_PAST) & (key >= NUM_PAST - num_before)
        seen = is_there[None, :] & (key[None, :] >= query[:, None])
        largest, total, result = _weigh(score * SCALE, seen, value, largest, total, result)
    keys = frames + (NUM_HEADS + key_head) * SIZE
    values = keys + NUM_KEY_HEADS * SIZE
    begin = tl.maximum(first - NUM_PAST, 0) // KEYS * KEYS
    for start in range(begin, tl.minimum(first + QUERIES, LENGTH), KEYS):
        key = start + tl.arange(0, KEYS)
        key_low, key_high = _turned(keys, turns, key, LENGTH, STRIDE, HALF, True)
        is_key = (key < LENGTH)[:, None]
        value = tl.load(values + key[:, None] * STRIDE + column, mask=is_key, other=0.0)
        score = tl.dot(low, tl.trans(key_low), input_precision="ieee")
        score = tl.dot(high, tl.trans(key_high), score, input_precision="ieee")
        distance = query[:, None] - key[None, :]
        seen = (distance >= 0) & (distance <= NUM_PAST)
        largest, total, result = _weigh(score * SCALE, seen, value, largest, total, result)
    result = result / total[:, None]
    place = output + (stream * LENGTH + query)[:, None] * (NUM_HEADS * SIZE) + head * SIZE + column
    tl.store(place, result.to(output.dtype.element_ty), mask=(query < LENGTH)[:, None])


def attend(
    projected: torch.Tensor,
    turns: torch.Tensor,
    past: torch.Tensor,
    positions: torch.Tensor,
    heads: Heads,
) -> torch.Tensor:
    """Attention [B * n, heads * size] of new frames to the window that ends with each.

    `projected` [B * n, (queries + 2 * keys) * size]: their queries, keys and values. `turns`: what
    `rotations` makes of them. `past` [B, 2, keys, window - 1, size]: rotated keys, and values, of
    the frames before; of a stream with fewer the last ones. Streams may lie apart in it.
    `positions`: int64 [B], frames of each stream before the new ones.
    """
    num_streams, length = len(positions), len(projected) // len(positions)
    output = projected.new_empty(len(projected), heads.queries * heads.size)
    queries = 16 if length <= 16 else 32
    num_blocks = triton.cdiv(length, queries)
    _attend[(num_streams * num_blocks * heads.queries,)](
        projected, turns, past, positions, output, length, num_blocks, SCALE=heads.size**-0.5,
        STATE_STRIDE=past.stride(0), NUM_PAST=past.shape[3], NUM_HEADS=heads.queries,
        NUM_KEY_HEADS=heads.keys, SIZE=heads.size, QUERIES=queries, KEYS=32, num_warps=2,
        num_stages=2,
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize=["LENGTH", "NUM_ROWS"])
def _move_on(
    projected, turns, past, LENGTH, NUM_ROWS,
    STATE_STRIDE: tl.constexpr, NUM_LAYERS: tl.constexpr, NUM_PAST: tl.constexpr,
    NUM_HEADS: tl.constexpr, NUM_KEY_HEADS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, NEW: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    STRIDE: tl.constexpr = (NUM_HEADS + 2 * NUM_KEY_HEADS) * SIZE
    NUM_LINES: tl.constexpr = NUM_LAYERS * 2 * NUM_KEY_HEADS
    line = tl.program_id(0) % NUM_LINES  # a head's keys or values of a layer
    stream = tl.program_id(0) // NUM_LINES
    part = line % (2 * NUM_KEY_HEADS)
    target = past + stream.to(tl.int64) * STATE_STRIDE + line * (NUM_PAST * SIZE)
    num_kept = NUM_PAST - LENGTH
    # The program owns its line. All of what is kept is in registers before any of it is written.
    row = tl.arange(0, BLOCK)[:, None]
    line_rows = target + row * SIZE + tl.arange(0, SIZE)[None, :]
    kept = tl.load(line_rows + LENGTH * SIZE, mask=row < num_kept, other=0.0)
    tl.debug_barrier()
    tl.store(line_rows, kept, mask=row < num_kept)
    first_row = line // (2 * NUM_KEY_HEADS) * NUM_ROWS + stream * LENGTH
    source = projected + first_row.to(tl.int64) * STRIDE + (NUM_HEADS + part) * SIZE
    turns += stream * LENGTH * SIZE
    half = tl.arange(0, HALF)[None, :]
    for start in range(tl.maximum(-num_kept, 0), LENGTH, NEW):
        frame = start + tl.arange(0, NEW)
        if part < NUM_KEY_HEADS:
            low, high = _turned(source, turns, frame, LENGTH, STRIDE, HALF, True)
        else:
            low, high = _turned(source, turns, frame, LENGTH, STRIDE, HALF, False)
        place = target + (num_kept + frame)[:, None] * SIZE + half
        is_frame = (frame < LENGTH)[:, None]
        tl.store(place, low, mask=is_frame)
        tl.store(place + HALF, high, mask=is_frame)


def move_on(projected: torch.Tensor, turns: torch.Tensor, past: torch.Tensor, heads: Heads) -> None:
    """Drop the oldest n frames of the windows of all layers and append the new ones, in place.

    `projected` [layers, B * n, (queries + 2 * keys) * size], `past` [B, layers, 2, keys, window -
    1, size], `turns` as `attend` has them. More new frames than a window has drop all.
    """
    num_layers, num_rows, _ = projected.shape
    num_streams, num_past = len(past), past.shape[-2]
    _move_on[(num_streams * num_layers * 2 * heads.keys,)](
        projected, turns, past, num_rows // num_streams, num_rows, STATE_STRIDE=past.stride(0),
        NUM_LAYERS=num_layers, NUM_PAST=num_past, NUM_HEADS=heads.queries,
        NUM_KEY_HEADS=heads.keys, SIZE=heads.size, BLOCK=triton.next_power_of_2(num_past), NEW=16,
        num_warps=4,
    )  # fmt: skip
