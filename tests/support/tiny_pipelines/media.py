"""Images and videos of noise for calls of tiny pipelines."""

from functools import partial

import numpy as np
import torch
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from PIL import Image

SIDE = 32


def any_image(seed: int) -> Image.Image:
    """Return an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(pixels)


def any_mask(seed: int) -> Image.Image:
    """Return a mask of the left half, whatever the seed."""
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[:, : SIDE // 2] = 255
    return Image.fromarray(pixels)


def any_video(seed: int, num_frames: int) -> list[Image.Image]:
    """Return frames of noise."""
    return [any_image(seed + index) for index in range(num_frames)]


five_frames = partial(any_video, num_frames=5)
nine_frames = partial(any_video, num_frames=9)


def any_conditions(seed: int) -> list[LTX2VideoCondition]:
    """Return LTX-2's first and last frame, of noise."""
    return [
        LTX2VideoCondition(any_image(seed), 0),
        LTX2VideoCondition(any_image(seed + 20), -1),
    ]


def any_sound(seed: int) -> torch.Tensor:
    """Return half a second of noise in stereo, [1, 2, samples] at 8 kHz."""
    return torch.rand((1, 2, 4000), generator=torch.Generator().manual_seed(seed)) - 0.5
