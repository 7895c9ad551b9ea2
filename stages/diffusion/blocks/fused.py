"""Denoisers whose blocks have kernels of our own, by the names of their classes."""

from importlib import import_module
from typing import Any

import torch
from torch import nn

# Modules with a `fuse(denoiser)`; they are imported on a GPU only.
FUSED = {"QwenImageTransformer2DModel": "qwen_image"}


def fuse(denoiser: nn.Module, device: torch.device) -> None:
    """Let a denoiser that will be compiled use kernels of our own on a GPU, if there are any.

    It computes the same, and its weights keep their names and places.
    """
    name = FUSED.get(type(denoiser).__name__)
    if name is not None and device.type == "cuda":
        module: Any = import_module(f"{__package__}.{name}")
        module.fuse(denoiser)
