"""Spreads the denoisers of each rank by Diffusers' plans of their classes."""

from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from omnistage.stages.diffusion.ranks.layers import cut_layers
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.sequences import Groups, share_sequences

GROUPS = "guidance"  # the mesh's first axis: ranks of different groups share nothing


def spread(
    denoisers: Iterable[torch.nn.Module], options: RankOptions, device: torch.device
) -> None:
    """Share denoisers among ranks, which all do so with their own copies at once.

    Raises ValueError if one cannot be spread.
    """
    if options.tensor > 1:
        mesh = _mesh(options, device, tensor=options.tensor)["tensor"]
    else:
        groups = _groups(options, device)
    for denoiser in denoisers:
        name = type(denoiser).__name__
        if getattr(denoiser, options.plan, None) is None:
            raise ValueError(no_plan(name, options))
        try:
            if options.tensor > 1:
                cut_layers(denoiser, mesh)
            else:
                share_sequences(denoiser, groups)
        except (AttributeError, RuntimeError, ValueError) as error:
            raise ValueError(f"parallel: {name}: {error}") from error


def no_plan(name: str, options: RankOptions) -> str:
    """Why a class of denoisers cannot be spread."""
    return f"parallel: {name} has no {options.plan}, so Diffusers cannot spread it like that"


def _groups(options: RankOptions, device: torch.device) -> Groups:
    ring, ulysses = options.ring, options.ulysses
    every = _mesh(options, device, sequence=ring * ulysses)["sequence"].get_group()
    if ring == 1:
        return Groups(every, ulysses=every)
    if ulysses == 1:
        return Groups(every, ring=every)
    mesh = _mesh(options, device, ring=ring, ulysses=ulysses)
    return Groups(every, mesh["ring"].get_group(), mesh["ulysses"].get_group())


def _mesh(options: RankOptions, device: torch.device, **sizes: int) -> DeviceMesh:
    """Order all ranks by group and place; every rank does so at the same time."""
    shape, names = (options.guidance_ranks, *sizes.values()), (GROUPS, *sizes)
    return init_device_mesh(device.type, shape, mesh_dim_names=names)
