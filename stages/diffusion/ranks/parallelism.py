"""Diffusers' own parallelism, on a denoiser of each rank. Nothing else here calls it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from diffusers import ContextParallelConfig
from diffusers.hooks import tensor_parallel
from diffusers.models._modeling_parallel import TensorParallelConfig
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from omnistage.stages.diffusion.ranks.options import RankOptions

GROUPS = "guidance"  # the mesh's first axis: ranks of different groups share nothing


def spread(
    denoiser: torch.nn.Module, options: RankOptions, mesh: DeviceMesh, device: torch.device
) -> None:
    """Enable it; all ranks do so with their own copy. Raises ValueError if it cannot be."""
    name = type(denoiser).__name__
    enable = getattr(denoiser, "enable_parallelism", None)
    if enable is None or getattr(denoiser, options.plan, None) is None:
        raise ValueError(no_plan(name, options))
    with _as_accelerator(device, mesh.size()):
        try:
            enable(config=_config(options, mesh))
        except (AssertionError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"parallel: {name}: {error}") from error


def no_plan(name: str, options: RankOptions) -> str:
    """Why a class of denoisers cannot be spread."""
    return f"parallel: {name} has no {options.plan}, so Diffusers cannot spread it like that"


def mesh_of(options: RankOptions, device: torch.device) -> DeviceMesh:
    """All ranks by group and place; every rank makes it at the same time."""
    if options.tensor > 1:
        sizes, names = (options.tensor,), ("tp",)
        return init_device_mesh(
            device.type, (options.guidance_ranks, *sizes), mesh_dim_names=(GROUPS, *names)
        )
    return init_device_mesh(
        device.type,
        (options.guidance_ranks, options.ring, options.ulysses),
        mesh_dim_names=(GROUPS, "ring", "ulysses"),
    )


def _config(options: RankOptions, mesh: DeviceMesh) -> TensorParallelConfig | ContextParallelConfig:
    """Sequences of any length, where one of the two ways is taken alone: texts are of any."""
    if options.tensor > 1:
        return TensorParallelConfig(tp_degree=options.tensor, mesh=mesh["tp"])
    return ContextParallelConfig(
        ring_degree=options.ring,
        ulysses_degree=options.ulysses,
        mesh=mesh,
        ulysses_anything=options.ring == 1,
        ring_anything=options.ulysses == 1,
    )


@contextmanager
def _as_accelerator(device: torch.device, size: int) -> Iterator[None]:
    """On a CPU: Diffusers divides by the number of accelerators and knows no shards there."""
    if device.type != "cpu":
        yield
        return
    count, supported = torch.accelerator.device_count, tensor_parallel._SUPPORTED_TP_DEVICES
    torch.accelerator.device_count = lambda: size
    tensor_parallel._SUPPORTED_TP_DEVICES = (*supported, "cpu")
    try:
        yield
    finally:
        torch.accelerator.device_count = count
        tensor_parallel._SUPPORTED_TP_DEVICES = supported
