"""Parts of pipelines that compute in ways of our own, by the names of their classes."""

from importlib import import_module
from typing import Any

import torch
from torch import nn

from omnistage.stages.diffusion.blocks.flash_3 import flash_3_problem

# Modules with `fuse(denoiser)` and `attend_by_flash_3(denoiser)`.
FUSED = {"QwenImageTransformer2DModel": "qwen_image"}
FLATTENED = {"AutoencoderKLQwenImage"}  # VAEs of videos that are pictures' here


def fuse(denoiser: nn.Module, device: torch.device, may_choose: bool = False) -> None:
    """Let a denoiser that will be compiled use kernels of our own on a GPU, if there are any.

    It computes the same, and its weights keep their names and places. `may_choose`: it attends by
    FlashAttention 3, where that is there.
    """
    if has_kernels(denoiser) and device.type == "cuda":
        _module(denoiser).fuse(denoiser)
        if may_choose and flash_3_problem(device) is None:
            _module(denoiser).attend_by_flash_3(denoiser)


def flatten(vae: nn.Module) -> None:
    """Let the VAE of a pipeline that will be compiled take single frames for pictures."""
    if type(vae).__name__ in FLATTENED:
        from omnistage.stages.diffusion.blocks.single_frames import flatten_single_frames

        flatten_single_frames(vae)


def attend_by_flash_3(denoiser: nn.Module, device: torch.device) -> None:
    """Let a denoiser attend by FlashAttention 3; it gets its other kernels, too.

    Raises ValueError for one without kernels of our own, and for a device without this one.
    """
    if not has_kernels(denoiser):
        raise ValueError(f"{type(denoiser).__name__} is none of {', '.join(FUSED)}")
    if problem := flash_3_problem(device):
        raise ValueError(problem)
    fuse(denoiser, device)
    _module(denoiser).attend_by_flash_3(denoiser)


def has_kernels(denoiser: nn.Module) -> bool:
    """Returns whether there are any for its class."""
    return type(denoiser).__name__ in FUSED


def _module(denoiser: nn.Module) -> Any:
    """Where its kernels are."""
    return import_module(f"{__package__}.{FUSED[type(denoiser).__name__]}")
