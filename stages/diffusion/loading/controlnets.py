"""Reads ControlNets from their own folders, to be given to a pipeline's class as a component."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch.nn import Module, ModuleList

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stages.device.stored_weights import stored_tensors
from omnistage.stages.diffusion.controlnets import (
    OPTION,
    controlled_name,
    controlnet_folders,
    kind_of,
)
from omnistage.stages.diffusion.loading.dummy_components import empty_module


@dataclass(frozen=True, slots=True)
class ControlNets:
    """The folders of the ControlNets beside a pipeline; the methods return nothing without any."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, given: object) -> "ControlNets":
        """Return those of an engine argument; raises ValueError."""
        return cls(() if given is None else controlnet_folders(given))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the component's name."""
        return (OPTION,) if self.folders else ()

    def class_beside(self, folder: Path) -> str:
        """Return the name of the class of a folder's pipeline with them; raises ValueError."""
        return controlled_name(Checkpoint(str(folder)), self.folders)

    def sizes(self, dtype: torch.dtype) -> dict[str, int]:
        """Return the bytes of all their weights in a dtype, by the component's name."""
        tensors = (one for folder in self.folders for one in stored_tensors(folder))
        return {OPTION: sum(one.num_bytes(dtype) for one in tensors)} if self.folders else {}

    def read(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return the component with its weights, on the host."""
        nets = [self._class(one).from_pretrained(one, dtype=dtype) for one in self.folders]
        return component_of(nets)

    def empty(self, dtype: torch.dtype) -> dict[str, Module]:
        """Return all of them as one module, with their weights on the meta device."""
        nets = [empty_module(self._class(one), one, dtype) for one in self.folders]
        return {OPTION: ModuleList(nets)} if nets else {}

    @staticmethod
    def _class(folder: Path) -> Any:
        return getattr(diffusers, kind_of(folder))


def component_of(nets: Iterable[Module]) -> dict[str, Any]:
    """Return the argument that a pipeline's class takes: a ControlNet, or a list of several."""
    listed = list(nets)
    return {OPTION: listed if len(listed) > 1 else listed[0]} if listed else {}
