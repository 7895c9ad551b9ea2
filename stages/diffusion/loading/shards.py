"""The part of a weight that a rank holds: taken off its device, put back, given other values.

torch's FSDP keeps its own references to such a part's memory, so the memory stays the same object:
it is made empty, and large again.
"""

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from omnistage.stages.diffusion.loading.page_locked import page_locked


class Shards:
    """Parts of weights that are away from their device."""

    def __init__(self) -> None:
        self._sizes: dict[DTensor, int] = {}  # bytes of those that are away
        self._kept: dict[DTensor, torch.Tensor] = {}  # on the host

    def take(self, weights: Sequence[DTensor], keeps: bool) -> None:
        """Off the device: to the host's memory, or dropped."""
        here = [weight for weight in weights if weight not in self._sizes]
        memories = [memory_of(weight) for weight in here]
        if keeps:
            for weight, memory, place in zip(here, memories, page_locked(memories), strict=True):
                self._kept[weight] = place.copy_(memory)
        for weight, memory in zip(here, memories, strict=True):
            self._sizes[weight] = memory.numel()
            memory.untyped_storage().resize_(0)
        if not keeps:
            for weight in weights:
                self._kept.pop(weight, None)

    def put_back(self, weights: Sequence[DTensor]) -> None:
        """On the device again; all of them were kept, or have been set since."""
        for weight in weights:
            if weight not in self._sizes:
                continue
            weight.to_local().untyped_storage().resize_(self._sizes[weight])  # for want of room
            memory_of(weight).copy_(self._kept[weight])  # it is tried again
            del self._sizes[weight], self._kept[weight]

    def set(self, weight: DTensor, whole: torch.Tensor) -> None:
        """The part of a whole weight that is ours; on the host if it is away."""
        part = part_of(weight, whole).to(weight.dtype).contiguous().view(-1).view(torch.uint8)
        if weight not in self._sizes:
            memory_of(weight)[: part.numel()].copy_(part)
            return
        if weight not in self._kept:
            (self._kept[weight],) = page_locked(
                [torch.empty(self._sizes[weight], dtype=torch.uint8, device="meta")]
            )
        self._kept[weight][: part.numel()].copy_(part)


def memory_of(weight: DTensor) -> torch.Tensor:
    """All bytes that hold our part; all parts of a weight have as many, the last by padding."""
    local = weight.to_local()
    return torch.empty(0, dtype=torch.uint8, device=local.device).set_(local.untyped_storage())


def part_of(weight: DTensor, whole: torch.Tensor) -> torch.Tensor:
    """Our rows of it; none, if there are fewer rows than ranks."""
    mesh = weight.device_mesh
    num_rows = -(-whole.shape[0] // mesh.size())
    start = num_rows * mesh.get_local_rank()
    return whole[start : start + num_rows]
