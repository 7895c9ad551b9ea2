"""Pipelines that make videos: how they are told from others, and their frames."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stages.failure import RequestError

COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")


def output_kind(known: Iterable[str]) -> str:
    """What a pipeline whose call has these arguments makes: `image` or `video`."""
    return "video" if "num_frames" in known else "image"


def counted(num: int, prompt: str, known: Iterable[str]) -> dict[str, Any]:
    """Arguments for so many pictures or videos of a prompt."""
    name = next((name for name in COUNTS if name in known), None)
    if name is not None:
        return {"prompt": prompt, name: num}
    return {"prompt": prompt if num == 1 else [prompt] * num}


def check_kind(wanted: Iterable[str], made: str) -> None:
    """Raises RequestError if a request wants what the pipeline does not make."""
    for kind in wanted:
        if kind != made:
            message = f"this pipeline makes no {kind}; it makes {made}"
            raise RequestError(400, message, code="unsupported_model")


def pictures_of(result: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Pictures [n, height, width, 3], or the frames of one video."""
    if "frames" in result:
        return np.asarray(result["frames"][0])
    return np.asarray(result["images"])
