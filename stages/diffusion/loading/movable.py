"""Modules whose weights are on the host for good, and on a device while they are needed."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.nn import Module, Parameter

from omnistage.stages.diffusion.loading.page_locked import page_locked

Slots = dict[str, Any]  # a module's own dict of parameters or buffers


class Movable:
    """Brings copies of modules' tensors to a device, and drops them. The host's stay."""

    def __init__(self, modules: Sequence[Module], staying: Collection[torch.Tensor] = ()) -> None:
        """`staying`: tensors that are others' to move."""
        self._modules = modules
        self._staying = {id(tensor): tensor for tensor in staying}
        self._away: list[tuple[Slots, str, torch.Tensor]] = []

    @property
    def is_here(self) -> bool:
        """Returns whether its tensors are on the device."""
        return bool(self._away)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Returns what is moved, each once: parameters and buffers as they are now."""
        return list({id(tensor): tensor for _, _, tensor in self._slots()}.values())

    def bring(self, device: torch.device) -> None:
        """Copies on the current stream; what is there already is not copied."""
        made: dict[int, torch.Tensor] = {}
        for slots, name, tensor in list(self._slots()):
            if tensor.device == device:
                continue
            if id(tensor) not in made:
                made[id(tensor)] = _like(tensor, tensor.detach().to(device, non_blocking=True))
            self._away.append((slots, name, tensor))
            slots[name] = made[id(tensor)]

    def leave(self) -> None:
        """Back to the host's tensors; changes of those on the device are lost."""
        for slots, name, tensor in self._away:
            if name in slots:
                slots[name] = tensor
        self._away.clear()

    def pin(self) -> None:
        """Put the host's tensors into page-locked memory, from which copies need no wait."""
        pin(self.tensors)

    def _slots(self) -> Iterator[tuple[Slots, str, torch.Tensor]]:
        parts = {id(part): part for module in self._modules for part in module.modules()}
        for part in parts.values():
            for slots in (part._parameters, part._buffers):
                for name, tensor in slots.items():
                    if tensor is not None and id(tensor) not in self._staying:
                        yield slots, name, tensor


def pin(tensors: Sequence[torch.Tensor]) -> None:
    """Move those that are not there yet into page-locked memory."""
    loose = [tensor for tensor in tensors if not tensor.is_pinned()]
    for tensor, place in zip(loose, page_locked(loose), strict=True):
        tensor.data = place.copy_(tensor.data)


def _like(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    return Parameter(made, requires_grad=False) if isinstance(tensor, Parameter) else made
