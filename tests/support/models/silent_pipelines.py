"""Pipelines whose calls take no callback, as HunyuanVideo 1.5's and Kandinsky's."""

import copy
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from diffusers import DiffusionPipeline, QwenImagePipeline, SchedulerMixin, WanPipeline
from torch import nn

SLOW_S = 0.25


class SilentPipeline(QwenImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """Loads as Qwen-Image. With guidance each step calls the denoiser twice."""

    def __call__(
        self,
        prompt: Any = None,
        negative_prompt: Any = None,
        true_cfg_scale: float = 4.0,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "pil",
    ) -> Any:
        """Call Qwen-Image, without any of its other arguments."""
        given = {name: value for name, value in locals().items() if name[0] not in "s_"}
        return super().__call__(**given)


class TwoStepsPipeline(QwenImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """A Qwen-Image without a callback, with a number of steps of its own."""

    def __call__(
        self,
        prompt: Any = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        output_type: str = "pil",
    ) -> Any:
        """Take two steps."""
        given = {name: value for name, value in locals().items() if name[0] not in "s_"}
        given["num_inference_steps"] = 2
        return super().__call__(**given)


class SlowSilentPipeline(SilentPipeline):
    """The same with a denoiser that takes SLOW_S for a call."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """Load it."""
        made: Self = super().from_pretrained(*args, **kwargs)
        made.transformer.register_forward_pre_hook(lambda *_: time.sleep(SLOW_S))
        return made


class SilentWan(WanPipeline):  # type: ignore[misc]  # Diffusers has no types
    """A Wan without a callback."""

    def __call__(
        self,
        prompt: Any = None,
        height: int = 480,
        width: int = 832,
        num_frames: int = 81,
        num_inference_steps: int = 50,
        guidance_scale: float = 5.0,
        generator: Any = None,
        output_type: str = "np",
    ) -> Any:
        """Call Wan, without any of its other arguments."""
        given = {name: value for name, value in locals().items() if name[0] not in "s_"}
        return super().__call__(**given)


class ToyDenoiser(nn.Module):
    """Takes a sample [rows, 3, height, width] and a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Predict noise."""
        made: torch.Tensor = self.layer(sample) * 0.1
        return made


class ToyPipeline(DiffusionPipeline):  # type: ignore[misc]  # Diffusers has no types
    """Runs the loops of its schedulers one after another, from any step on.

    `ways`: `copied` steps a copy of each scheduler beside it, as LTX-2 for audio; `apart` makes
    more than two pictures of a request one after another; `own` has no use for a scheduler.
    """

    def __init__(self, schedulers: Sequence[SchedulerMixin], *ways: str) -> None:
        super().__init__()
        self.denoiser = ToyDenoiser()
        self.names = [f"scheduler_{index}" for index in range(len(schedulers))]
        self.__dict__ |= dict(zip(self.names, schedulers, strict=True))
        self.ways = ways

    @property
    def components(self) -> dict[str, Any]:
        """Return the denoiser: the schedulers are other attributes."""
        return {"denoiser": self.denoiser}

    def __call__(
        self,
        prompt: Any = None,
        num_inference_steps: int = 4,
        num_images_per_prompt: int = 1,
        skipped: int = 0,
        generator: Any = None,
    ) -> Any:
        """Return images [pictures, 3, 4, 4]."""
        num = num_images_per_prompt
        sample = torch.randn(num, 3, 4, 4, generator=generator)
        groups = sample.split(1) if "apart" in self.ways and num > 2 else [sample]
        images = [self._denoised(one, num_inference_steps, skipped) for one in groups]
        return SimpleNamespace(images=torch.cat(images))

    def _denoised(self, sample: torch.Tensor, num_steps: int, skipped: int) -> torch.Tensor:
        if "own" in self.ways:
            for time_ in torch.linspace(1, 0, num_steps * 10):
                sample = sample - self.denoiser(sample, time_.expand(len(sample))) / num_steps
            return sample
        for name in self.names:
            scheduler = getattr(self, name)
            scheduler.set_timesteps(num_steps)
            beside = copy.deepcopy(scheduler) if "copied" in self.ways else None
            for one in scheduler.timesteps[skipped:]:
                noise = self.denoiser(sample, one.expand(len(sample)))
                if beside is not None:
                    beside.step(noise, one, sample)
                sample = scheduler.step(noise, one, sample, return_dict=False)[0]
        return sample
