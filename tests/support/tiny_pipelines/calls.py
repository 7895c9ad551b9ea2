"""Arguments of a call of any tiny pipeline."""

from typing import Any

import torch
from support.tiny_pipelines.media import SIDE, any_image, any_mask, nine_frames
from support.tiny_pipelines.recipes import recipe_of

from omnistage.stages.diffusion.request.tasks import arguments_of

PROMPTS = ("a cat", "a dog", "an ox")  # as many tokens each
NUM_FRAMES = 5
NUM_STEPS = 3


def arguments(pipeline: Any, seed: int, **more: Any) -> dict[str, Any]:
    """Return the arguments of a request, which differ by seed."""
    known = arguments_of(pipeline)
    given: dict[str, Any] = {
        "prompt": PROMPTS[seed % len(PROMPTS)],
        "num_inference_steps": NUM_STEPS,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "np",
        "height": SIDE,
        "width": SIDE,
        "num_frames": NUM_FRAMES,
        "max_sequence_length": 16,
        "image": any_image,
        "mask_image": any_mask,
        "control_image": lambda seed: any_image(seed + 20),
        "video": nine_frames,
    }
    recipe = recipe_of(type(pipeline))
    chosen = {name: value for name, value in given.items() if name in known}
    chosen |= {name: value for name, value in recipe.call.items() if name in known}
    found = {name: value(seed) if callable(value) else value for name, value in chosen.items()}
    return {name: value for name, value in found.items() if name not in recipe.without} | more
