"""Checks that ranks fit the machine and the pipeline, before weights load."""

from collections.abc import Mapping

import torch

from omnistage.stages.device.devices import device_of
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.parallelism import no_plan
from omnistage.stages.diffusion.ranks.sharding import names_blocks, no_blocks
from omnistage.stages.diffusion.ranks.tiles import check_tiles


def check_ranks(model: str, load: LoadOptions, options: RankOptions) -> None:
    """Before weights load: raise ValueError if there are too few GPUs for all ranks.

    Or if a denoiser's class cannot be spread like that.
    """
    num_gpus = torch.cuda.device_count()
    if device_of(load.device).type == "cuda" and num_gpus < options.size:
        raise ValueError(f"its engine has {options.size} ranks, a GPU each; CUDA has {num_gpus}")
    if options.vae > 1:
        check_vaes(load.tiled_in(load.folder_of(model)))
    if not options.plan and options.shard == 1:
        return
    for made in load.denoisers_in(load.folder_of(model)).values():
        if options.plan and getattr(made, options.plan, None) is None:
            raise ValueError(no_plan(made.__name__, options))
        if options.shard > 1 and not names_blocks(made):
            raise ValueError(no_blocks(made))


def check_vaes(tiled: Mapping[str, type]) -> None:
    """Raise ValueError if there is no VAE with tiles, or one whose tiles cannot be shared."""
    if not tiled:
        raise ValueError("parallel.vae: the pipeline has no VAE that decodes in tiles")
    for made in tiled.values():
        check_tiles(made)
