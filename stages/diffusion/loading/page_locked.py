"""The host's page-locked memory: CUDA copies from and to it at full speed, beside other work."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any
from weakref import finalize

import torch

logger = logging.getLogger(__name__)

PIECE_BYTES = 512 << 20
ALIGNMENT = 512


def page_locked(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """An empty tensor for each, of its shape and type; without CUDA the memory is plain.

    They lie side by side in pieces of memory that are no longer than what is in them, whereas
    torch's own pinned memory is given out in powers of two.
    """
    for group in _groups(tensors):
        sizes = [_padded_size(tensor) for tensor in group]
        piece = _piece(sum(sizes))
        for tensor, end, size in zip(group, accumulate(sizes), sizes, strict=True):
            start = end - size
            num_bytes = tensor.numel() * tensor.itemsize
            yield piece[start : start + num_bytes].view(tensor.dtype).view(tensor.shape)


def _padded_size(tensor: torch.Tensor) -> int:
    return max(1, -(-tensor.numel() * tensor.itemsize // ALIGNMENT)) * ALIGNMENT


def _groups(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    group: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if group and size + _padded_size(tensor) > PIECE_BYTES:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += _padded_size(tensor)
    if group:
        yield group


def _piece(size: int) -> torch.Tensor:
    """Bytes, unlocked and given back with the last tensor in them."""
    memory = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    piece = torch.frombuffer(memory, dtype=torch.uint8)
    if not torch.cuda.is_available():
        return piece
    piece.zero_()  # all cores map its pages; to lock would map them one after the other
    cudart: Any = torch.cuda.cudart()
    address = piece.data_ptr()
    if cudart.cudaHostRegister(address, size, 0) == cudart.cudaError.success:
        finalize(memory, cudart.cudaHostUnregister, address).atexit = False
        return piece
    logger.warning("CUDA locks no memory of ours; torch's own takes up to twice as much")
    with suppress(RuntimeError):  # CUDA reports a failed call once more with the next kernel
        torch.ones(1, device="cuda")
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
