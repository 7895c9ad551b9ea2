# mypy: disable-error-code="no-untyped-def,import-untyped"
"""One pass of the code predictor over the new tokens of each row, one CUDA kernel a step.

A frame is fifteen passes over five layers of tiny tensors: its time is the number of kernels, and
how fast each of them gets its weights. The functions are those of code_predictor_plain.py.
"""

import torch
import triton
import triton.language as tl

from omnistage.stages.speech.code_picks_triton import gumbel_noise, pick
from omnistage.stages.speech.code_products_triton import (
    EARLY,
    STARTS_EARLY,
    let_next_start,
    linear,
    linear_add,
    normal_gated_linear,
    normal_linear,
    wait_for_inputs,
)

__all__ = [
    "attend",
    "gumbel_noise",
    "linear",
    "linear_add",
    "normal_gated_linear",
    "normal_linear",
    "pick",
]


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
    let_next_start(IS_EARLY)
    row = tl.program_id(0)
    key_head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    rotation_size = NUM_POSITIONS * SIZE
    cache += row * NUM_POSITIONS * NUM_KEY_HEADS * SIZE + key_head * SIZE
    known = tl.arange(0, BLOCK_POSITIONS)
    place = known[:, None] * NUM_KEY_HEADS * SIZE + column[None, :]
    mask = (known < position)[:, None] & inside[None, :]
    wait_for_inputs(IS_EARLY)
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
