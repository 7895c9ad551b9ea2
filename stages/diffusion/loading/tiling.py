"""Decoding in tiles, which Diffusers' VAEs do for pictures that are larger than one of them."""

import inspect
from collections.abc import Mapping
from typing import Any

from omnistage.stages.diffusion.loading.components import has_tiles, modules_in

OPTION = "vae_tiling"
PREFIX = "tile_"  # of what Diffusers' VAEs call the sizes

Tiling = bool | Mapping[str, float]  # sizes; true: the class's own


def check_tiling(given: object) -> None:
    """Raise ValueError for what is neither true, false nor sizes."""
    if type(given) is bool:
        return
    if not isinstance(given, Mapping):
        raise ValueError(f"{OPTION}: must be true, false or a mapping of sizes, not {given!r}")
    for name, size in given.items():
        if type(size) not in (int, float) or size <= 0:
            raise ValueError(f"{OPTION}.{name}: must be a number above 0, not {size!r}")


def tile(pipeline: object, tiling: Tiling) -> None:
    """Let its VAEs decode in tiles; raises ValueError if there is none or it has no such size."""
    if not tiling:
        return
    vaes = [module for _, module in modules_in(pipeline) if has_tiles(type(module))]
    if not vaes:
        raise ValueError(f"{OPTION}: the pipeline has no VAE that decodes in tiles")
    for vae in vaes:
        _tile(vae, {} if tiling is True else tiling)


def _tile(vae: Any, sizes: Mapping[str, float]) -> None:
    known = sorted(name for name in vars(vae) if name.startswith(PREFIX))
    for name in sizes:
        if name not in known:
            message = f"{type(vae).__name__} has no such size; it has {', '.join(known)}"
            raise ValueError(f"{OPTION}.{name}: {message}")
    arguments = inspect.signature(vae.enable_tiling).parameters
    vae.enable_tiling(**{name: sizes[name] for name in sizes if name in arguments})
    for name in sizes:  # a class whose method takes none keeps them as they are set
        setattr(vae, name, sizes[name])
