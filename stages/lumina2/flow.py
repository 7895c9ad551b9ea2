"""A pipeline whose denoiser predicts velocities, from noise at time 0 to an image at 1."""

from collections.abc import Callable

import torch
from diffusers import DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor

SQUARE_SIDE = 40  # latents of the side of an image whose schedule is not shifted


class FlowPipeline(DiffusionPipeline):
    """The steps and the decoding; its components are `vae` and `scheduler` at least."""

    def set_sizes(self, patch_size: int) -> None:
        """Know how sides of images and of latents compare."""
        self.vae_scale_factor: int = 2 ** (len(self.vae.config.block_out_channels) - 1)
        self.side_multiple: int = self.vae_scale_factor * patch_size
        self.default_sample_size = 128
        self.image_processor = VaeImageProcessor(vae_scale_factor=self.side_multiple)

    def check_inputs(self, height: int | None, width: int | None) -> None:
        """Raise ValueError for sides that no patches make; the stage of pipelines reads it."""
        is_uneven = height is not None and height % self.side_multiple
        if is_uneven or (width is not None and width % self.side_multiple):
            message = f"{width} x {height}: sides must be multiples of {self.side_multiple}"
            raise ValueError(message)

    def _denoised(
        self,
        latents: torch.Tensor,
        num_steps: int,
        velocity: Callable[[torch.Tensor, float], torch.Tensor],
    ) -> torch.Tensor:
        """Return latents without noise; time goes from 0, which is noise, to 1.

        `velocity` returns where latents go at a time.
        """
        times = torch.arange(num_steps, dtype=torch.float64) / num_steps
        if self.scheduler.config.get("dynamic_time_shift", True):
            shift = (latents.shape[2] * latents.shape[3]) ** 0.5 / SQUARE_SIDE
            times = times / (shift - shift * times + times)
        self.scheduler.set_timesteps(sigmas=(1 - times).tolist(), device=latents.device)
        steps = zip(times.tolist(), self.scheduler.timesteps, strict=True)
        for time, timestep in self.progress_bar(list(steps)):
            going = velocity(latents, time)
            latents = self.scheduler.step(-going, timestep, latents, return_dict=False)[0]
            latents = latents.to(self.vae.dtype)
        return latents

    def _decoded(self, latents: torch.Tensor) -> torch.Tensor:
        """Return pixels [batch, 3, height, width] from -1 to 1."""
        config = self.vae.config
        latents = latents / (config.scaling_factor or 1) + (config.shift_factor or 0)
        pixels: torch.Tensor = self.vae.decode(latents, return_dict=False)[0]
        return pixels
