"""A device to copy weights to and to compute on, where there is none but the CPU."""

from collections.abc import Iterable

import torch

# The CPU by another name: torch copies what goes from one to the other.
OTHER_CPU = torch.device("cpu", 0)


def places(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where their values lie in memory; empty ones lie nowhere."""
    return [tensor.data_ptr() for tensor in tensors if tensor.numel()]
