"""Which of Diffusers' attention back ends a pipeline's denoisers use."""

from typing import Any

from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend

from omnistage.stages.diffusion.loading.components import Parts

# Diffusers' names by themselves without the underscore with which some begin.
BACKENDS = {one.value.removeprefix("_"): one.value for one in AttentionBackendName}


def check_attention(name: Any) -> None:
    """Raise ValueError for what is no name of a back end, with or without its underscore."""
    if not isinstance(name, str) or name.removeprefix("_") not in BACKENDS:
        raise ValueError(f"attention {name!r} is none of {', '.join(sorted(BACKENDS))}")


def set_attention(parts: Parts, name: str) -> None:
    """Let all denoisers use a back end, and nothing else.

    Raises ValueError, with Diffusers' reason, for one that cannot be used here, and for a denoiser
    whose attention takes none.
    """
    backend = BACKENDS[name.removeprefix("_")]
    for part, module in parts.dit.items():
        choose: Any = getattr(module, "set_attention_backend", None)
        if choose is None:
            raise ValueError(_takes_none(part, module))
        try:
            with attention_backend():  # at its end what was the process's own is so again
                choose(backend)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"attention: {name}: {error}") from error
        processors = [getattr(one, "processor", None) for one in module.modules()]
        if not any(getattr(one, "_attention_backend", None) == backend for one in processors):
            raise ValueError(_takes_none(part, module))


def _takes_none(part: str, module: Any) -> str:
    return f"attention: {part} ({type(module).__name__}) takes none of Diffusers' back ends"
