"""Parts of pipelines that compute in ways of our own, by their models' profiles."""

import torch
from torch import nn

from omnistage.stages.diffusion.blocks.flash_3 import flash_3_problem
from omnistage.stages.diffusion.profiles.profile import all_profiles, call, profile_of


def fuse(denoiser: nn.Module, device: torch.device, may_choose: bool = False) -> None:
    """Let a denoiser that will be compiled use kernels of our own on a GPU, if there are any.

    It computes the same, and its weights keep their names and places. `may_choose`: it attends by
    FlashAttention 3, where that is there.
    """
    profile = profile_of(denoiser)
    if profile.fuse and device.type == "cuda":
        call(profile.fuse, denoiser)
        if may_choose and profile.attend_by_flash_3 and flash_3_problem(device) is None:
            call(profile.attend_by_flash_3, denoiser)


def flatten(vae: nn.Module) -> None:
    """Let the VAE of a pipeline that will be compiled take single frames for pictures."""
    profile = profile_of(vae)
    if profile.flatten:
        call(profile.flatten, vae)


def attend_by_flash_3(denoiser: nn.Module, device: torch.device) -> None:
    """Let a denoiser attend by FlashAttention 3; it gets its other kernels, too.

    Raises ValueError for one without kernels of our own, and for a device without this one.
    """
    profile = profile_of(denoiser)
    if not profile.attend_by_flash_3:
        able = (one for one in all_profiles() if one.attend_by_flash_3)
        names = ", ".join(sorted(name for one in able for name in one.denoisers))
        raise ValueError(f"{type(denoiser).__name__} is none of {names}")
    if problem := flash_3_problem(device):
        raise ValueError(problem)
    fuse(denoiser, device)
    call(profile.attend_by_flash_3, denoiser)
