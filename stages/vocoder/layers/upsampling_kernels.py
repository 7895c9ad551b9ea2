# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""A causal depthwise convolution with the norm behind it, in half precision on a GPU.

Tensors are channels-last. What a stream's first steps reach back to is read where it lies in its
state. Sums and norms are float32.
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["LENGTH"])
def _convolve_depthwise(
    inputs, context, weight, bias, scale, shift, output, LENGTH,
    STATE_STRIDE: tl.constexpr, NUM_TAPS: tl.constexpr, WIDTH: tl.constexpr,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    NUM_PAST: tl.constexpr = NUM_TAPS - 1
    row = tl.program_id(0)
    stream = row // LENGTH
    time = row % LENGTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    past = context + stream.to(tl.int64) * STATE_STRIDE + column
    value = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        step = time + tap - NUM_PAST
        num_old = tl.where(step < 0, WIDTH, 0)  # all channels are of the context, or none
        old = tl.load(past + (step + NUM_PAST) * WIDTH, mask=column < num_old, other=0.0)
        place = inputs + (stream * LENGTH + step) * WIDTH + column
        new = tl.load(place, mask=column < WIDTH - num_old, other=0.0)
        factor = tl.load(weight + tap * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        value += (old.to(tl.float32) + new.to(tl.float32)) * factor
    mean = tl.sum(value, 0) / WIDTH
    value = tl.where(inside, value - mean, 0.0)
    variance = tl.sum(value * value, 0) / WIDTH
    value *= tl.rsqrt(variance + EPSILON)
    value *= tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * WIDTH + column, value.to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["LENGTH"])
def _keep_last(
    inputs, context, LENGTH,
    STATE_STRIDE: tl.constexpr, NUM_PAST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    num_blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    stream = tl.program_id(0) // num_blocks
    column = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    past = context + stream.to(tl.int64) * STATE_STRIDE + column
    # Each thread owns its channels, and reads a step before it writes to one that is as late.
    for step in tl.static_range(NUM_PAST):
        source = step + LENGTH - NUM_PAST
        num_old = tl.where(source < 0, WIDTH, 0)
        is_old = column < num_old
        old = tl.load(past + (step + LENGTH) * WIDTH, mask=is_old, other=0.0)
        place = inputs + (stream * LENGTH + source) * WIDTH + column
        new = tl.load(place, mask=column < WIDTH - num_old, other=0.0)
        tl.store(past + step * WIDTH, tl.where(is_old, old, new), mask=inside)


def convolve_depthwise(
    inputs: torch.Tensor,
    context: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """The layer norm of a causal depthwise convolution of inputs [B, n, C]: the same shape.

    `weight`: [taps, C]. `context` [B, taps - 1, C]: the inputs before, and, when it returns, those
    before the next chunk. Streams may lie apart in it.
    """
    num_streams, length, width = inputs.shape
    num_taps = len(weight)
    output = torch.empty_like(inputs)
    _convolve_depthwise[(num_streams * length,)](
        inputs, context, weight, bias, scale, shift, output, length,
        STATE_STRIDE=context.stride(0), NUM_TAPS=num_taps, WIDTH=width, EPSILON=epsilon,
        BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    block = 256
    _keep_last[(num_streams * triton.cdiv(width, block),)](
        inputs, context, length, STATE_STRIDE=context.stride(0), NUM_PAST=num_taps - 1,
        WIDTH=width, BLOCK=block, num_warps=1,
    )  # fmt: skip
    return output
