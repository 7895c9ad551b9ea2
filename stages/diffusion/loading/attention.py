"""Sets the attention of a pipeline's denoisers: a back end of Diffusers, or vLLM's kernels."""

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend

from omnistage.stages.diffusion.blocks.fused import attend_by_flash_3
from omnistage.stages.diffusion.loading.components import Parts

VLLM_FLASH_3 = "vllm_flash_3"
# Diffusers' names by themselves without the underscore with which some begin.
BACKENDS = {one.value.removeprefix("_"): one.value for one in AttentionBackendName}


def check_attention(name: object) -> None:
    """Raise ValueError for what is no name of a back end, with or without its underscore."""
    if name == VLLM_FLASH_3:
        return
    if not isinstance(name, str) or name.removeprefix("_") not in BACKENDS:
        names = ", ".join(sorted((*BACKENDS, VLLM_FLASH_3)))
        raise ValueError(f"attention {name!r} is none of {names}")


def set_attention(parts: Parts, name: str, device: torch.device) -> None:
    """Let all denoisers use a back end on their device, and nothing else.

    Raises ValueError, with Diffusers' reason, for one that cannot be used here, and for a denoiser
    whose attention takes none.
    """
    if name == VLLM_FLASH_3:
        for part, module in parts.dit.items():
            try:
                attend_by_flash_3(module, device)
            except ValueError as error:
                raise ValueError(f"attention: {name}: {part}: {error}") from error
        return
    backend = BACKENDS[name.removeprefix("_")]
    for part, module in parts.dit.items():
        choose: Callable[[str], None] | None = getattr(module, "set_attention_backend", None)
        if choose is None:
            raise ValueError(_takes_none(part, module))
        try:
            with attention_backend():  # at its end what was the process's own is so again
                choose(backend)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"attention: {name}: {error}") from error
        processors: list[Any] = [getattr(one, "processor", None) for one in module.modules()]
        for one in processors:
            if getattr(one, "has_flash_3", False):
                one.has_flash_3 = False
        if not any(getattr(one, "_attention_backend", None) == backend for one in processors):
            raise ValueError(_takes_none(part, module))


def _takes_none(part: str, module: object) -> str:
    return f"attention: {part} ({type(module).__name__}) takes none of Diffusers' back ends"
