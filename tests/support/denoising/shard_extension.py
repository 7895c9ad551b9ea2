"""Methods for ranks whose denoisers have their weights in parts."""

from collections.abc import Iterator
from typing import Any

import torch
from support.denoising.rank_extension import Extension
from torch.distributed.tensor import DTensor


class Sharded(Extension):
    """Tells what is where, and fails as it is told."""

    device: torch.device
    refusing: int = -1
    failing: int = -1
    most_whole_blocks: int = 0

    def num_bytes(self) -> int:
        """What the memory of the denoisers' weights takes here, padding too."""
        memories = {}
        for denoiser in self.denoisers.values():
            for weight in denoiser.parameters():
                local = weight.to_local() if isinstance(weight, DTensor) else weight
                memories[local.untyped_storage()._cdata] = local.untyped_storage().nbytes()
        return sum(memories.values())

    def watch_blocks(self) -> None:
        """Count, whenever one computes, those whose weights are whole."""
        blocks = [one for name in self.denoisers for one in _blocks(self.denoisers[name])]

        def count(block: Any, args: Any) -> None:
            assert _is_whole(block)
            num_whole = sum(_is_whole(one) for one in blocks)
            self.most_whole_blocks = max(self.most_whole_blocks, num_whole)

        for block in blocks:
            block.register_forward_pre_hook(count)

    def most_blocks_at_once(self) -> int:
        """Of those that were counted."""
        return self.most_whole_blocks

    def refuse_on(self, rank: int) -> None:
        """Have one of them unable to read other weights."""
        self.refusing = rank

    def fail_on_exchange(self, rank: int) -> None:
        """Have one of them unable to put other weights in."""
        self.failing = rank

    def prepare_weights(self, folder: str | None) -> None:
        """As it is, but where it was told to refuse."""
        if self.refusing == self.rank:
            raise OSError("no such folder here")
        super().prepare_weights(folder)  # type: ignore[misc]  # of the worker

    def exchange_weights(self) -> None:
        """As it is, but where it was told to fail."""
        if self.failing == self.rank:
            raise torch.OutOfMemoryError("no room for them")
        super().exchange_weights()  # type: ignore[misc]  # of the worker


def _blocks(denoiser: Any) -> Iterator[torch.nn.Module]:
    for part in denoiser.children():
        if isinstance(part, torch.nn.ModuleList):
            yield from part


def _is_whole(block: torch.nn.Module) -> bool:
    return not any(isinstance(weight, DTensor) for weight in block.parameters())
