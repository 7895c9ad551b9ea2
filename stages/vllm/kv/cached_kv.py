"""Finds keys and values in an engine's KV cache, whatever its attention backend's layout is.

Backends lay a block out as their kernels like it: heads or tokens first, keys and values side by
side or apart, on a CPU keys transposed or packed. So the layout is found, not known: numbers are
written by the layer's own method, and looked for in the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch

BASE = 128  # of the digits of numbers: each, and one more, is exact in every dtype of a cache
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class WritesCache(Protocol):
    """The implementation of a layer of attention."""

    def do_kv_cache_update(
        self,
        layer: object,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write keys and values [n, heads, size] into slots."""


class AttentionLayer(Protocol):
    """A layer of attention, as vLLM's configuration has it by its name."""

    @property
    def impl(self) -> WritesCache:
        """Returns what writes its cache."""


class CachedKv:
    """Keys and values of all layers, by block and position."""

    def __init__(
        self,
        layer: AttentionLayer,
        caches: Sequence[torch.Tensor],
        num_blocks: int,
        block_size: int,
        heads: tuple[int, int],
    ) -> None:
        """Find the layout; raises ValueError if it cannot be found.

        `caches`: those of the layers in the model's order, of equal shapes; `layer`: the first.
        They hold nothing yet. `heads`: number and size.
        """
        first = caches[0]
        alike = {(one.shape, one.stride(), one.dtype) for one in caches}
        if len(alike) > 1:
            raise ValueError(f"the layers' KV caches are not alike: {sorted(map(str, alike))}")
        if first.dtype not in DTYPES:
            allowed = ", ".join(DTYPES.values())
            raise ValueError(f"a KV cache of {first.dtype} is quantized; allowed: {allowed}")
        self.device, self.dtype = first.device, first.dtype
        self.token_shape = len(caches), 2, *heads
        self.token_bytes = 2 * len(caches) * heads[0] * heads[1] * first.dtype.itemsize
        self.block_size = block_size
        axis = 1 if first.shape[0] == 2 and first.shape[1] % num_blocks == 0 else 0
        if first.shape[axis] % num_blocks:
            raise ValueError(f"a KV cache of shape {tuple(first.shape)} has no axis of blocks")
        self._kernel_size = num_blocks * block_size // first.shape[axis]
        places = _places(layer, first, axis, self._kernel_size, heads)
        self._parts = [
            _Part.of(where, caches, axis, range(start, end))
            for where in places
            for start, end in _neighbours(caches)
        ]

    def read(self, blocks: torch.Tensor, first: int, out: torch.Tensor) -> None:
        """Copy keys and values of positions from `first` on into `out` [layers, 2, n, heads, size].

        `blocks` int64, on the host: those of a request, in order. `out` is on the host.
        """
        positions = torch.arange(first, first + out.shape[2])
        slots = blocks[positions // self.block_size] * self.block_size
        slots += positions % self.block_size
        num_parts = len(self._parts) // 2
        made = out if self.device.type == "cpu" else torch.empty_like(out, device=self.device)
        for number, part in enumerate(self._parts):
            part.read(slots, self._kernel_size, made[part.layers, number // num_parts])
        if made is not out:
            out.copy_(made)


class _Part:
    """Keys, or values, of layers that are neighbours in memory, in blocks of `size` tokens."""

    def __init__(self, layers: slice, view: torch.Tensor, where: torch.Tensor | None) -> None:
        """`view` [layers, blocks, size, heads, size of a head], or [layers, blocks, elements] with
        `where` int64 [size, heads, size of a head], which says where each element is.
        """
        self.layers = layers
        self._view = view
        self._where = where

    @classmethod
    def of(
        cls, where: torch.Tensor, caches: Sequence[torch.Tensor], axis: int, layers: range
    ) -> "_Part":
        first = caches[layers.start]
        start = first.storage_offset()
        apart = caches[layers.start + 1].storage_offset() - start if len(layers) > 1 else 0
        outer = (len(layers), first.shape[axis]), (apart, first.stride(axis))
        span = slice(layers.start, layers.stop)
        strides = _strides(where)
        if strides is not None:
            base = start + int(where.flatten()[0])
            view = first.as_strided((*outer[0], *where.shape), (*outer[1], *strides), base)
            return cls(span, view, None)
        size = int(where.max()) + 1
        view = first.as_strided((*outer[0], size), (*outer[1], 1), start)
        return cls(span, view, where.to(first.device))

    def read(self, slots: torch.Tensor, size: int, out: torch.Tensor) -> None:
        """Copy these slots into `out` [layers, n, heads, size of a head]."""
        if self._where is None and self._view.device.type != "cpu":
            on_device = slots.to(self._view.device)
            out.copy_(self._view[:, on_device // size, on_device % size])
            return
        for start, end in _runs(slots, size):
            block, offset = divmod(int(slots[start]), size)
            view = self._view[:, block]
            if self._where is None:
                out[:, start:end] = view[:, offset : offset + end - start]
            else:
                where = self._where[offset : offset + end - start].flatten()
                out[:, start:end] = view[:, where].view(out[:, start:end].shape)


def _places(
    layer: AttentionLayer, cache: torch.Tensor, axis: int, size: int, heads: tuple[int, int]
) -> torch.Tensor:
    """Return where a block has the elements of its keys and of its values.

    int64 [2, size, *heads]: numbers of elements behind the block's first. The cache is left empty.
    """
    count = 2 * size * heads[0] * heads[1]
    numbers = torch.arange(count, device=cache.device).view(2, size, *heads)
    slots = torch.arange(size, 2 * size, device=cache.device)  # of the second block
    block = cache.narrow(axis, 1, 1)
    found = torch.zeros(block.shape, dtype=torch.int64, device=cache.device)
    power = 1
    while power < count:
        digits = (numbers // power % BASE + 1).to(cache.dtype)
        block.zero_()
        layer.impl.do_kv_cache_update(layer, digits[0], digits[1], cache, slots)
        written = block.to(torch.int64) - 1
        found += power * written
        power *= BASE
    block.zero_()
    is_written = (written >= 0).flatten().cpu()
    offsets = torch.zeros(block.shape, dtype=torch.int64)
    for dim, stride in enumerate(block.stride()):
        shape = [-1 if one == dim else 1 for one in range(block.dim())]
        offsets += (torch.arange(block.shape[dim]) * stride).view(shape)
    order = found.flatten().cpu()[is_written]
    if not torch.equal(order.sort().values, torch.arange(count)):
        raise ValueError("the attention backend does not keep keys and values as they are computed")
    places = torch.empty(count, dtype=torch.int64)
    places[order] = offsets.flatten()[is_written]
    return places.view(2, size, *heads)


def _strides(where: torch.Tensor) -> list[int] | None:
    """Return the strides with which a tensor's elements are at these places, if any are."""
    zero = (0,) * where.dim()
    base = int(where[zero])
    strides, made = [], torch.full_like(where, base)
    for dim, length in enumerate(where.shape):
        step = list(zero)
        step[dim] = 1
        strides.append(int(where[tuple(step)]) - base if length > 1 else 0)
        shape = [-1 if one == dim else 1 for one in range(where.dim())]
        made += (torch.arange(length) * strides[-1]).view(shape)
    is_equal = min(strides) >= 0 and torch.equal(made, where)
    return strides if is_equal else None


def _neighbours(caches: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Yield the layers whose caches are in one memory at equal distances: first and end."""
    start = 0
    for index in range(1, len(caches) + 1):
        if (
            index < len(caches)
            and _apart(caches, index)
            and (index == start + 1 or _apart(caches, index) == _apart(caches, index - 1))
        ):
            continue
        yield start, index
        start = index


def _apart(caches: Sequence[torch.Tensor], index: int) -> int:
    """Return how far a layer's cache is behind the one before it; 0: they share no memory."""
    before, one = caches[index - 1], caches[index]
    if before.untyped_storage().data_ptr() != one.untyped_storage().data_ptr():
        return 0
    return max(0, int(one.storage_offset()) - int(before.storage_offset()))


def _runs(slots: torch.Tensor, size: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of slots that follow each other in one block."""
    is_new = (slots[1:] != slots[:-1] + 1) | (slots[1:] % size == 0)
    edges = [0, *(torch.nonzero(is_new).flatten() + 1).tolist(), len(slots)]
    yield from pairwise(edges)


def in_order(caches: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of layers in the model's order: by the numbers in them.

    Raises ValueError for layers with several caches.
    """
    numbers = {name: [int(part) for part in name.split(".") if part.isdigit()] for name in caches}
    if len({tuple(one) for one in numbers.values()}) < len(caches):
        raise ValueError(f"layers of the model have several KV caches: {', '.join(sorted(caches))}")
    return sorted(numbers, key=lambda name: numbers[name])
