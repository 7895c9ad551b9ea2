"""A tiny pipeline that can be stuck: a call of one module, or calls without an end."""

import time
from typing import Any, Self

from diffusers import QwenImagePipeline

STUCK_SIZE = 80  # a picture so wide is never decoded: one call of a module lasts for ever
ENDLESS_SIZE = 384  # the same, but each of its calls is short
STUCK_S = 3600.0


class StuckPipeline(QwenImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """Loads as Qwen-Image."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """With a decoder that is late."""
        made: Self = super().from_pretrained(*args, **kwargs)
        made.vae.decoder.conv_in.register_forward_pre_hook(made.be_stuck)
        made.vae.decoder.conv_out.register_forward_pre_hook(made.be_endless)
        return made

    def be_stuck(self, module: Any, args: Any) -> None:
        """As in an operation that takes an hour."""
        if args[0].shape[-1] * self.vae_scale_factor == STUCK_SIZE:
            time.sleep(STUCK_S)

    def be_endless(self, module: Any, args: Any) -> None:
        """As in a decoder of any number of layers."""
        while args[0].shape[-1] == ENDLESS_SIZE:
            self.vae.decoder.nonlinearity(args[0][..., :1, :1])
