"""What transformers' GLM-Image makes of a prompt, likeliest ids first."""

from typing import Any

import torch


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
