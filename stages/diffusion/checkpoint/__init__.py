"""`omnistage tiny`: pipelines of random weights, a megabyte or two each."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from omnistage.stages.diffusion.checkpoint.flux import make_tiny_flux
from omnistage.stages.diffusion.checkpoint.qwen_image import make_tiny_qwen_image
from omnistage.stages.diffusion.checkpoint.sd3 import make_tiny_sd3
from omnistage.stages.diffusion.checkpoint.wan import make_tiny_wan

MAKERS: Mapping[str, Callable[[], Any]] = {
    "flux": make_tiny_flux,
    "qwen-image": make_tiny_qwen_image,
    "sd3": make_tiny_sd3,
    "wan": make_tiny_wan,
}


def make_tiny(name: str, seed: int = 0) -> Any:
    """A pipeline; the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MAKERS[name]()


def write_tiny(name: str, folder: Path, seed: int = 0) -> None:
    """The pipeline's folder."""
    make_tiny(name, seed).save_pretrained(folder)


write_tiny_flux = partial(write_tiny, "flux")
write_tiny_qwen_image = partial(write_tiny, "qwen-image")
write_tiny_sd3 = partial(write_tiny, "sd3")
write_tiny_wan = partial(write_tiny, "wan")
