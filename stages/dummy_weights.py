"""Weights for a model without any: random, and such that it works as hard as a real one does.

The values of vLLM's own dummy weights lie within a thousandth of zero. A model of them is faster
than a real one: all its routers choose the same few experts, so most weights are never read.
"""

import zlib
from collections.abc import Iterable
from math import prod

import torch

MATRIX_BOUND = 0.035  # a standard deviation of 0.02, with which such models are initialised
RESIDUAL_SCALE = 0.01
RESIDUAL_SCALES = ("gamma", "layer_scale.scale")
CHUNK = 1 << 26  # values drawn at once: a few hundred MiB beside the weights
# Multipliers of the finalizer of MurmurHash3 (Austin Appleby), as signed 32-bit integers.
MIX = ((-2048144789, 16, 0xFFFF), (-1028477387, 13, 0x7FFFF))
GOLDEN = -1640531527  # 2**32 over the golden ratio: seeds far apart for neighbouring names


@torch.no_grad()
def fill_with_dummy_weights(
    parameters: Iterable[tuple[str, torch.Tensor]], bound: float = MATRIX_BOUND
) -> None:
    """Norms become 1, biases 0, scales of residual branches 0.01, all else uniform in ±bound.

    A parameter's values depend on its name and shape, on nothing else: they are hashes of their
    index, not drawn by torch, whose generators depend on the device and on how many multiprocessors
    a process may use. Raises ValueError for a parameter that is no plain floating-point tensor, as
    a quantised model has.
    """
    for name, parameter in parameters:
        if parameter.is_meta or parameter.dtype.itemsize < 2 or not parameter.is_floating_point():
            raise ValueError(f"there are no dummy weights for a quantised model: {name}")
        if name.endswith("bias"):
            parameter.zero_()
        elif name.endswith(RESIDUAL_SCALES):
            parameter.fill_(RESIDUAL_SCALE)
        elif parameter.dim() > 1:
            _fill_uniform(parameter, zlib.crc32(name.encode()), bound)
        elif name.endswith("weight"):
            parameter.fill_(1.0)


def _fill_uniform(parameter: torch.Tensor, seed: int, bound: float) -> None:
    """Uniform in ±bound: a value is the hash of its index in row-major order, and of the seed."""
    count = prod(parameter.shape)
    flat = parameter.view(-1) if parameter.is_contiguous() else parameter.new_empty(count)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        index = torch.arange(start, stop, dtype=torch.int64, device=parameter.device)
        bits = (index + seed * GOLDEN).to(torch.int32)  # keeps the low 32 bits
        for multiplier, shift, mask in MIX:
            bits ^= (bits >> shift) & mask  # torch shifts the sign in; the mask takes it out
            bits *= multiplier
        bits ^= (bits >> 16) & 0xFFFF
        flat[start:stop] = bits.to(torch.float32) * (bound / (1 << 31))
    if not parameter.is_contiguous():
        parameter.copy_(flat.view(parameter.shape))
