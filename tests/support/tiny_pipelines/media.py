"""Images and videos of noise for calls of tiny pipelines."""

from functools import partial

import numpy as np
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
