"""What transformers' GLM-Image makes of a prompt and of images, likeliest ids first."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image


def make_greedy(pipeline: Any) -> Any:
    """The same pipeline, whose sampling has no choice."""
    pipeline.vision_language_encoder.generation_config.update(top_k=1)
    return pipeline


def reference_ids(pipeline: Any, prompt: str, height: int, width: int) -> torch.Tensor:
    """The ids of an image int64 [n] by the whole pipeline's own loop."""
    with torch.inference_mode():
        ids, _, _ = pipeline.generate_prior_tokens(prompt=prompt, height=height, width=width)
    found: torch.Tensor = ids[0]
    return found


def edit_arguments(
    pipeline: Any, prompt: str, images: Sequence[Image.Image], height: int, width: int
) -> dict[str, Any]:
    """The arguments of the pipeline's call for an edit, by transformers' model and processor.

    Diffusers 0.42 makes them for an older transformers: its own loop ends with an error.
    """
    content = [
        *({"type": "image", "image": one} for one in images),
        {"type": "text", "text": prompt},
    ]
    inputs = pipeline.processor.apply_chat_template(
        [[{"role": "user", "content": content}]],
        tokenize=True,
        processor_kwargs={"target_h": height, "target_w": width},
        return_dict=True,
        return_tensors="pt",
    )
    model, grids = pipeline.vision_language_encoder, inputs["image_grid_thw"]
    sources, (_, rows, columns) = grids[:-1], grids[-1].tolist()
    num_made = rows * columns
    with torch.inference_mode():
        seen = model.get_image_features(inputs["pixel_values"], sources).pooler_output
        ids = model.get_image_tokens(seen)
        made = model.generate(**inputs, max_new_tokens=num_made + 1, do_sample=True)
    made = made[0, inputs["input_ids"].shape[1] :][:num_made]
    parts = zip(ids.split(sources.prod(-1).tolist()), sources.tolist(), strict=True)
    doubled = [pipeline._upsample_token_ids(part, *grid[1:])[0] for part, grid in parts]
    return {
        "image": list(images),
        "height": height,
        "width": width,
        "prior_token_ids": pipeline._upsample_token_ids(made, rows, columns),
        "prior_token_image_ids": [torch.cat(doubled)],
        "source_image_grid_thw": [sources * torch.tensor([1, 2, 2])],
    }
