"""Pipelines of families whose decoder writes down that it has begun, and has no end.

Only for images of `STUCK_SIZE`: others are decoded. So has its encoder, for `STUCK_ENCODING_SIZE`.
"""

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any, Self

from diffusers import GlmImagePipeline

from omnistage.stages.dreamid_omni.pipeline import DreamIDOmniPipeline
from omnistage.stages.mammothmoda2.pipeline import MammothModa2Pipeline
from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline

Size = tuple[int, int]
STUCK_SIZE: Size = (192, 64)
STUCK_ENCODING_SIZE: Size = (64, 192)
HAS_BEGUN = "OMNISTAGE_TEST_DECODING"  # where it writes


class Stuck:
    """Mixed into a pipeline with `vae` before its own class."""

    vae: Any
    vae_scale_factor: int

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """Load it with such a decoder and encoder."""
        made: Self = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]  # the pipeline's
        stuck = {made.vae.decoder: STUCK_SIZE, made.vae.encoder: STUCK_ENCODING_SIZE}
        for module, size in stuck.items():
            module.conv_in.register_forward_pre_hook(partial(be_stuck, size))
        return made


def be_stuck(size: Size, module: Any, args: Any) -> None:
    """Compute for ever if what is computed is of this size."""
    height, width = args[0].shape[-2:]
    if width * size[1] == height * size[0]:
        Path(os.environ[HAS_BEGUN]).touch()
        threading.Event().wait()


class StuckOmniGen2(Stuck, OmniGen2Pipeline):
    """OmniGen2's."""


class StuckMammothModa2(Stuck, MammothModa2Pipeline):
    """MammothModa2's."""


class StuckGlmImage(Stuck, GlmImagePipeline):  # type: ignore[misc]  # Diffusers has no types
    """GLM-Image's."""


class StuckDreamIDOmni(Stuck, DreamIDOmniPipeline):
    """DreamID-Omni's."""
