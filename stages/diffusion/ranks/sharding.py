"""Weights of a denoiser in parts, one on each rank; torch's FSDP gathers each block's in time."""

from collections.abc import Callable
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import Module

from omnistage.stages.diffusion.merging.torch_modes import for_any_mode
from omnistage.stages.diffusion.ranks.options import RankOptions

FSDP = "fsdp"  # the mesh's name by which peft knows that layers compute with whole weights


class ShardedDenoiser(Module):
    """Calls a denoiser with weights that are in parts; all ranks of the mesh call theirs at once.

    A block's weights are whole while it computes, those outside of blocks during the whole call.
    The denoiser itself stays as it is, so that whoever puts its calls through to the ranks may do
    so before anything is gathered.
    """

    def __init__(self, denoiser: Module, mesh: DeviceMesh) -> None:
        """Moves the weights to the mesh's device block by block, and leaves a part of each."""
        super().__init__()
        self.denoiser = denoiser
        self.whole: Callable[..., object] = denoiser.forward
        blocks = _blocks_of(denoiser)
        if not blocks:
            raise ValueError(no_blocks(type(denoiser)))
        denoiser.requires_grad_(False)  # of weights that are trained FSDP wants one dtype
        with for_any_mode():
            for block in (*blocks, self):
                fully_shard(block, mesh=mesh, reshard_after_forward=True)

    def forward(self, *args: object, **kwargs: object) -> object:
        """The denoiser's, as it was when it was last told."""
        return self.whole(*args, **kwargs)

    def call(self, *args: object, **kwargs: object) -> object:
        """A forward; one that fails leaves nothing gathered."""
        try:
            return self(*args, **kwargs)
        except Exception:
            cast(FSDPModule, self).reset_iter_state()  # `fully_shard` has made it one
            raise


def names_blocks(made: type) -> bool:
    """Returns whether a class of denoisers can be sharded."""
    return bool(_names_of(made))


def no_blocks(made: type) -> str:
    """Why one cannot."""
    return f"parallel.shard: {made.__name__} names no blocks that could be gathered one by one"


def shard_mesh_of(options: RankOptions, device: torch.device) -> DeviceMesh:
    """The ranks among which ours shares its weights; every rank makes it at the same time."""
    sizes = (options.guidance_ranks, options.group_size // options.shard, options.shard)
    names = ("guidance", "copies", FSDP)
    return init_device_mesh(device.type, sizes, mesh_dim_names=names)[FSDP]


def _blocks_of(denoiser: Module) -> list[Module]:
    """The modules that the class names as blocks, those inside of others first."""
    names = _names_of(type(denoiser))
    return [one for one in reversed(list(denoiser.modules())) if type(one).__name__ in names]


def _names_of(made: type) -> tuple[str, ...]:
    """Diffusers' names for them: those worth compiling alone, else those kept on one device."""
    found = getattr(made, "_repeated_blocks", None) or getattr(made, "_no_split_modules", None)
    return tuple(found or ())
