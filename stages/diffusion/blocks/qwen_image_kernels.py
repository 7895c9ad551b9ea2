# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""Kernels of Qwen-Image's blocks, in half precision on a GPU.

One makes of the projections of text and picture the queries, keys and values of both: it norms
and rotates what is to be, and puts the texts' before the pictures'. One multiplies a single row, of
which a block has one for each of its modulations, at the rate at which weights come from memory.
Sums and rotations are float32. What torch.compile traces are the launches.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

HEADS = 8  # that a program has


@dataclass(frozen=True, slots=True)
class AttentionStream:
    """The inputs of attention for texts or images; all in the same half precision.

    `query`, `key`, `value` [B, tokens, heads * size]: projections. `query_norm`, `key_norm`
    [size]: weights of root mean square norms. `rotations` [tokens, size / 2] complex64.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    rotations: torch.Tensor


@triton.jit
def _turned(source, norm, cos, sin, inside, EPSILON: tl.constexpr):
    """Heads [HEADS, SIZE], normed and rotated: rounded where Diffusers rounds."""
    value = tl.load(source, mask=inside, other=0.0)
    kind: tl.constexpr = value.dtype
    SIZE: tl.constexpr = value.shape[1]
    value = value.to(tl.float32)
    mean = tl.sum(value * value, 1) / SIZE
    value = (value * tl.rsqrt(mean + EPSILON)[:, None]).to(kind).to(tl.float32)
    value = (value * norm).to(kind).to(tl.float32)
    real, imaginary = tl.split(tl.reshape(value, (value.shape[0], SIZE // 2, 2)))
    turned = tl.join(real * cos - imaginary * sin, imaginary * cos + real * sin)
    return tl.reshape(turned, (value.shape[0], SIZE)).to(kind)


@triton.jit
def _put(
    query, key, value, query_norm, key_norm, rotations, row, token,
    query_output, key_output, value_output, output_row,
    NUM_HEADS: tl.constexpr, SIZE: tl.constexpr, EPSILON: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, SIZE)
    inside = (head < NUM_HEADS) & (column[None, :] < SIZE)
    within = head * SIZE + column[None, :]
    source = row.to(tl.int64) * (NUM_HEADS * SIZE) + within
    target = output_row.to(tl.int64) * (NUM_HEADS * SIZE) + within
    # Read for each head, which is near at hand: so they lie in registers as the heads do.
    same = column[None, :] + tl.zeros((HEADS, 1), tl.int32)
    rotation = tl.load(rotations + token * SIZE + same)
    cos, sin = tl.split(tl.reshape(rotation, (HEADS, SIZE // 2, 2)))
    norm = tl.load(query_norm + same).to(tl.float32)
    tl.store(
        query_output + target, _turned(query + source, norm, cos, sin, inside, EPSILON), inside
    )
    norm = tl.load(key_norm + same).to(tl.float32)
    tl.store(key_output + target, _turned(key + source, norm, cos, sin, inside, EPSILON), inside)
    tl.store(value_output + target, tl.load(value + source, mask=inside, other=0.0), inside)


@triton.jit(do_not_specialize=["NUM_TEXT", "NUM_IMAGE"])
def _join(
    text_query, text_key, text_value, text_query_norm, text_key_norm, text_rotations,
    image_query, image_key, image_value, image_query_norm, image_key_norm, image_rotations,
    query, key, value, NUM_TEXT, NUM_IMAGE,
    NUM_HEADS: tl.constexpr, SIZE: tl.constexpr, EPSILON: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    sample = row // (NUM_TEXT + NUM_IMAGE)
    token = row % (NUM_TEXT + NUM_IMAGE)
    if token < NUM_TEXT:
        _put(
            text_query, text_key, text_value, text_query_norm, text_key_norm, text_rotations,
            sample * NUM_TEXT + token, token, query, key, value, row,
            NUM_HEADS, SIZE, EPSILON, HEADS,
        )  # fmt: skip
    else:
        token -= NUM_TEXT
        _put(
            image_query, image_key, image_value, image_query_norm, image_key_norm, image_rotations,
            sample * NUM_IMAGE + token, token, query, key, value, row,
            NUM_HEADS, SIZE, EPSILON, HEADS,
        )  # fmt: skip


def join(
    text: AttentionStream, image: AttentionStream, size: int, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of both, [B, texts' + pictures' tokens, heads, size], contiguous.

    Queries and keys are normed, with `epsilon`, and rotated. `size`: a power of two.
    """
    num_samples, num_text, width = text.query.shape
    num_image, num_heads = image.query.shape[1], width // size
    shape = (num_samples, num_text + num_image, num_heads, size)
    query, key, value = (text.query.new_empty(shape) for _ in range(3))
    grid = (num_samples * (num_text + num_image), triton.cdiv(num_heads, HEADS))
    _join[grid](
        *_flat(text), *_flat(image), query, key, value, num_text, num_image, NUM_HEADS=num_heads,
        SIZE=size, EPSILON=epsilon, HEADS=HEADS, num_warps=4,
    )  # fmt: skip
    return query, key, value


def _flat(stream: AttentionStream) -> tuple[torch.Tensor, ...]:
    projections = (stream.query, stream.key, stream.value)
    rotations = torch.view_as_real(stream.rotations).contiguous()
    return (
        *(one.contiguous() for one in projections),
        stream.query_norm,
        stream.key_norm,
        rotations,
    )


@triton.jit
def _multiply_row(
    row, weight, bias, scale, output, NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = number < NUM_OUTPUTS
    column = tl.arange(0, INPUTS)
    place = weight + number.to(tl.int64)[:, None] * NUM_INPUTS + column[None, :]
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for first in range(0, NUM_INPUTS, INPUTS):
        is_input = first + column < NUM_INPUTS
        inside = is_output[:, None] & is_input[None, :]
        factor = tl.load(row + first + column, mask=is_input, other=0.0).to(tl.float32)
        total += tl.load(place + first, mask=inside, other=0.0).to(tl.float32) * factor[None, :]
    result = tl.sum(total, 1)
    if HAS_SCALE:
        result *= tl.load(scale + number, mask=is_output, other=0.0)
    if HAS_BIAS:
        result += tl.load(bias + number, mask=is_output, other=0.0).to(tl.float32)
    tl.store(output + number, result.to(output.dtype.element_ty), mask=is_output)


def multiply_row(
    row: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """[1, in] times [out, in], and the bias [out]: [1, out] in the row's dtype.

    `scale`: of each output, float32 [1, out], for weights in float8. Weights are contiguous.
    """
    num_outputs, num_inputs = weight.shape
    output = row.new_empty(1, num_outputs)
    outputs = 8
    _multiply_row[(triton.cdiv(num_outputs, outputs),)](
        row.contiguous(), weight, row if bias is None else bias, row if scale is None else scale,
        output, NUM_INPUTS=num_inputs, NUM_OUTPUTS=num_outputs, HAS_BIAS=bias is not None,
        HAS_SCALE=scale is not None, INPUTS=512, OUTPUTS=outputs, num_warps=4,
    )  # fmt: skip
    return output
