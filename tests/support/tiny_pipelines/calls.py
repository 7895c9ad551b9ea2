"""Arguments of a call of any tiny pipeline."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from support.tiny_pipelines.recipes import recipe_of

from omnistage.stages.diffusion.request.tasks import arguments_of

PROMPTS = ("a cat", "a red house", "rain at night")
SIDE = 32
NUM_FRAMES = 5
NUM_STEPS = 3


def arguments(pipeline: Any, seed: int, **more: Any) -> dict[str, Any]:
    """Return the arguments of a request, which differ by seed."""
    known = arguments_of(pipeline)
    image, video = make_image(seed), [make_image(seed + index) for index in range(9)]
    given: dict[str, Any] = {
        "prompt": PROMPTS[seed % len(PROMPTS)],
        "num_inference_steps": NUM_STEPS,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "np",
        "height": SIDE,
        "width": SIDE,
        "num_frames": NUM_FRAMES,
        "max_sequence_length": 16,
        "image": image,
        "mask_image": make_mask(),
        "control_image": make_image(seed + 20),
        "video": video,
    }
    recipe = recipe_of(type(pipeline))
    chosen = {name: value for name, value in given.items() if name in known}
    chosen |= {name: value for name, value in recipe.call.items() if name in known}
    found = {name: value(seed) if callable(value) else value for name, value in chosen.items()}
    return {name: value for name, value in found.items() if name not in recipe.without} | more


def make_image(seed: int) -> Image.Image:
    """Return an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(pixels)


def make_mask() -> Image.Image:
    """Return a mask of the left half."""
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[:, : SIDE // 2] = 255
    return Image.fromarray(pixels)
