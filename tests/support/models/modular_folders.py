"""Folders of tiny modular pipelines, made of the parts of other tiny ones."""

import logging
import warnings
from pathlib import Path
from typing import Any

import diffusers
import torch

from omnistage.stages.diffusion.checkpoint import make_tiny

MODULAR = {
    "flux": "FluxModularPipeline",
    "qwen-image": "QwenImageModularPipeline",
    "sd3": "StableDiffusion3ModularPipeline",
    "wan": "WanModularPipeline",
}


def write_modular(name: str, folder: Path) -> Path:
    """Write the modular pipeline over the parts of a tiny one, as Diffusers saves it."""
    made = getattr(diffusers, MODULAR[name])
    modular = made(getattr(diffusers, made.default_blocks_name)())
    parts = make_tiny(name).components
    known = {part: one for part, one in parts.items() if part in modular.component_names}
    modular.update_components(**known)
    modular.save_pretrained(str(folder), overwrite_modular_index=True)
    return folder


def load_bare(folder: Path) -> Any:
    """Load a folder by Diffusers alone."""
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = diffusers.ModularPipeline.from_pretrained(str(folder), local_files_only=True)
        bare.load_components(dtype=torch.float32, local_files_only=True)
    return bare


def called(bare: Any, guidance_scale: float | None = None, **arguments: Any) -> Any:
    """The images or frames of a bare modular pipeline, by a guider of this scale."""
    if guidance_scale is not None and "guidance_scale" not in bare.blocks.input_names:
        guider = diffusers.ClassifierFreeGuidance(guidance_scale=guidance_scale)
        bare.update_components(guider=guider)
        guidance_scale = None
    given = {} if guidance_scale is None else {"guidance_scale": guidance_scale}
    with torch.inference_mode():
        state = bare(**{"output_type": "np", **arguments, **given})
    videos = state.values.get("videos")
    return state.values["images"] if videos is None else videos[0]
