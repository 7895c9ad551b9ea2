"""Repeated blocks of a denoiser, each on the device only around its own turn."""

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch.nn import Module, ModuleList

from omnistage.stages.diffusion.loading.movable import Movable


def blocks_of(name: str, module: Module) -> list[Module]:
    """The members of the outermost lists of modules; raises ValueError if there are none."""
    lists = [(path, part) for path, part in module.named_modules() if isinstance(part, ModuleList)]
    outermost = [
        part for path, part in lists if not any(path.startswith(f"{other}.") for other, _ in lists)
    ]
    blocks = [block for part in outermost for block in part]
    if not blocks:
        raise ValueError(f"offload: {name} has no repeated blocks; use sequential")
    return blocks


class BlockStream:
    """While a block runs, the next is copied to the device, on CUDA by a stream of its own.

    At most three are there: one that the device may still work on, this one, and the next.
    """

    def __init__(
        self, blocks: Sequence[Module], movables: Sequence[Movable], device: torch.device
    ) -> None:
        """Installs hooks on the blocks, whose weights are in the host's memory."""
        self._movables = movables
        self._device = device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._arrivals: dict[int, torch.Event] = {}
        # Blocks that ran, and when they end.
        self._worked: deque[tuple[int, torch.Event | None]] = deque()
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self._before, index))
            block.register_forward_hook(partial(self._after, index), always_call=True)

    def _before(self, index: int, block: Module, args: object) -> None:
        self._bring(index)
        if self._copies is not None:
            torch.cuda.current_stream(self._device).wait_event(self._arrivals[index])
        while len(self._worked) > 1:
            _, ended = self._worked.popleft()
            if ended is not None:
                ended.synchronize()
        following = (index + 1) % len(self._movables)
        for other, movable in enumerate(self._movables):
            if other not in (index, following, *(done for done, _ in self._worked)):
                movable.leave()
        self._bring(following)

    def _after(self, index: int, block: Module, args: object, result: object) -> None:
        ended = None
        if self._copies is not None:
            ended = torch.cuda.current_stream(self._device).record_event()
        self._worked.append((index, ended))

    def _bring(self, index: int) -> None:
        if self._movables[index].is_here:
            return
        with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
            self._movables[index].bring(self._device)
            if self._copies is not None:
                self._arrivals[index] = self._copies.record_event()
