"""Modules of a pipeline that take turns on the device, because they do not fit there together."""

from collections import Counter
from itertools import chain

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch.nn import Module

from omnistage.stages.diffusion.loading.block_stream import BlockStream, blocks_of
from omnistage.stages.diffusion.loading.components import Parts, modules_in
from omnistage.stages.diffusion.loading.movable import Movable

OFFLOADS = ("sequential", "layerwise")


class Turns:
    """One of the modules is on the device; the others' weights are in the host's memory.

    For one thread: whoever uses a module first takes its turn, by the hooks of `offload`.
    """

    def __init__(self, modules: dict[str, Movable], device: torch.device) -> None:
        """Turns of names that are not among `modules` only send the others away."""
        self._modules = modules
        self.device = device
        self._name: str | None = None

    @property
    def name(self) -> str | None:
        """Whose turn it is."""
        return self._name

    def begin(self, name: str) -> None:
        """Bring a module, after the one before has left."""
        if name == self._name:
            return
        self.end()
        if name in self._modules:
            self._modules[name].bring(self.device)
        self._name = name

    def end(self) -> None:
        """All weights to the host: before they are changed, or put to sleep."""
        if self._name in self._modules:
            self._modules[self._name].leave()
        self._name = None


class TakesTurn(ModelHook):  # type: ignore[misc]  # accelerate has no types
    """Accelerate's kind of hook: Diffusers asks it for the device, and calls it in `decode`."""

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name
        self.execution_device = turns.device

    def pre_forward(self, module: Module, *args: object, **kwargs: object) -> tuple[object, object]:
        """The module's turn; its inputs follow it."""
        self._turns.begin(self._name)
        device = self._turns.device
        return send_to_device(args, device), send_to_device(kwargs, device)

    def pre_part(self, part: Module, args: object) -> None:
        """For uses of a part of the module that do not begin at its forward."""
        self._turns.begin(self._name)


def offload(pipeline: object, parts: Parts, kind: str, device: torch.device) -> Turns:
    """Install turns (`sequential`), or streams of the denoisers' blocks beside them (`layerwise`).

    What has no role, and what two modules share, stays on the device. Raises ValueError for a
    denoiser without repeated blocks.
    """
    streamed = parts.dit if kind == "layerwise" else {}
    blocks = {name: blocks_of(name, module) for name, module in streamed.items()}
    whole = {name: module for name, module in parts.moved.items() if name not in streamed}
    groups = [[module] for module in chain(whole.values(), *blocks.values())]
    staying = _place_the_rest(pipeline, parts, groups, device)

    def movable(module: Module) -> Movable:
        made = Movable([module], staying)
        if device.type == "cuda":
            made.pin()
        return made

    turns = Turns({name: movable(module) for name, module in whole.items()}, device)
    for name, module in parts.moved.items():
        hook = TakesTurn(turns, name)
        add_hook_to_module(module, hook)
        if name not in parts.dit:
            for part in module.modules():
                part.register_forward_pre_hook(hook.pre_part)
    for members in blocks.values():
        BlockStream(members, [movable(block) for block in members], device)
    return turns


def _place_the_rest(
    pipeline: object, parts: Parts, groups: list[list[Module]], device: torch.device
) -> list[torch.Tensor]:
    """To the device goes what is not moved: residents, what groups share, what has no role."""
    owners = Counter(id(tensor) for group in groups for tensor in Movable(group).tensors)
    resident = {id(one) for one in Movable(list(parts.resident.values())).tensors}
    everything = [module for _, module in modules_in(pipeline)]
    everything += [*parts.moved.values(), *parts.resident.values()]
    moved = [
        tensor
        for tensor in Movable(everything).tensors
        if owners[id(tensor)] == 1 and id(tensor) not in resident
    ]
    rest = Movable(everything, moved)
    rest.bring(device)
    return rest.tensors
