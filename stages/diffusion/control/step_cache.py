"""Step caches: Diffusers' hooks that skip parts of a step which changes little."""

from collections.abc import Callable, Mapping

import torch
from diffusers.hooks import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig

CONFIGS = {
    "first_block": FirstBlockCacheConfig,
    "mag": MagCacheConfig,
    "taylor_seer": TaylorSeerCacheConfig,
}


class StepCache:
    """One of them on a denoiser, to be switched on for requests that want it and off for others."""

    def __init__(self, denoiser: torch.nn.Module, name: str, options: Mapping[str, object]) -> None:
        """Raises ValueError for an unknown name, a wrong option, or a denoiser without caches."""
        if name not in CONFIGS:
            raise ValueError(f"step_cache: {name!r} is none of {', '.join(CONFIGS)}")
        try:
            config = CONFIGS[name](**options)
        except TypeError as error:
            raise ValueError(f"step_cache_options: {error}") from error
        enable: Callable[[object], None] | None = getattr(denoiser, "enable_cache", None)
        if enable is None:
            raise ValueError(f"step_cache: {type(denoiser).__name__} takes no cache")
        before = {part: vars(part).get("forward") for part in denoiser.modules()}
        enable(config)
        self._forwards = [
            (part, vars(part).get("forward"), own)
            for part, own in before.items()
            if vars(part).get("forward") is not own
        ]
        if not self._forwards:
            raise ValueError(f"step_cache: {name} finds nothing in {type(denoiser).__name__}")
        self._is_on = True
        self.put(False)

    def put(self, is_on: bool) -> None:
        """Let the denoiser work with its cache or without."""
        if is_on == self._is_on:
            return
        for part, cached, own in self._forwards:
            forward = cached if is_on else own
            if forward is None:
                del part.forward
            else:
                part.forward = forward
        self._is_on = is_on
