"""Pipelines of families whose decoder writes down that it has begun, and has no end.

Only for images of `STUCK_SIZE`: others are decoded.
"""

import os
import threading
from pathlib import Path
from typing import Any, Self

from diffusers import GlmImagePipeline

from omnistage.stages.mammothmoda2.pipeline import MammothModa2Pipeline
from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline

STUCK_SIZE = (192, 64)
HAS_BEGUN = "OMNISTAGE_TEST_DECODING"  # where it writes


class Stuck:
    """Mixed into a pipeline with `vae` before its own class."""

    vae: Any
    vae_scale_factor: int

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """Load it with such a decoder."""
        made: Self = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # the pipeline's
        made.vae.decoder.conv_in.register_forward_pre_hook(made.be_stuck)
        return made

    def be_stuck(self, module: Any, args: Any) -> None:
        """Decode for ever."""
        height, width = args[0].shape[-2:]
        if width * STUCK_SIZE[1] == height * STUCK_SIZE[0]:
            Path(os.environ[HAS_BEGUN]).touch()
            threading.Event().wait()


class StuckOmniGen2(Stuck, OmniGen2Pipeline):
    """OmniGen2's."""


class StuckMammothModa2(Stuck, MammothModa2Pipeline):
    """MammothModa2's."""


class StuckGlmImage(Stuck, GlmImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """GLM-Image's."""
