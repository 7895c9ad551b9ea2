"""Weights for a model without any: random, and such that it works as hard as a real one does.

The values of vLLM's own dummy weights lie within a thousandth of zero. A model of them is faster
than a real one: all its routers choose the same few experts, so most weights are never read.
"""

import zlib
from collections.abc import Iterable

import torch

MATRIX_BOUND = 0.035  # a standard deviation of 0.02, with which such models are initialised
RESIDUAL_SCALE = 0.01
RESIDUAL_SCALES = ("gamma", "layer_scale.scale")


@torch.no_grad()
def fill_with_dummy_weights(
    parameters: Iterable[tuple[str, torch.Tensor]], bound: float = MATRIX_BOUND
) -> None:
    """Norms become 1, biases 0, scales of residual branches 0.01, all else uniform in ±bound.

    A parameter's values depend on its name, shape and device, on nothing else. Raises ValueError
    for a parameter that is no plain floating-point tensor, as a quantised model has.
    """
    for name, parameter in parameters:
        if parameter.is_meta or parameter.dtype.itemsize < 2 or not parameter.is_floating_point():
            raise ValueError(f"there are no dummy weights for a quantised model: {name}")
        if name.endswith("bias"):
            parameter.zero_()
        elif name.endswith(RESIDUAL_SCALES):
            parameter.fill_(RESIDUAL_SCALE)
        elif parameter.dim() > 1:
            generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))
            parameter.uniform_(-bound, bound, generator=generator)
        elif name.endswith("weight"):
            parameter.fill_(1.0)
