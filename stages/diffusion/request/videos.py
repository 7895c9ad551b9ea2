"""Pipelines that make videos: how they are told from others."""

from collections.abc import Iterable, Mapping
from typing import Any

from omnistage.stages.messages.to_gateway import PictureOutput
from omnistage.stages.worker.failure import RequestError

COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")

PIXELS = frozenset({"image", "video"})  # outputs that a pipeline may make; others are other stages'


def output_kind(known: Iterable[str]) -> PictureOutput:
    """Returns what a pipeline whose call has these arguments makes: `image` or `video`."""
    return "video" if "num_frames" in known else "image"


def counted(num: int, prompt: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Arguments for so many pictures or videos of each prompt, `prompt` being its arguments."""
    name = next((name for name in COUNTS if name in known), None)
    if name is not None:
        return {**prompt, name: num}
    if num == 1:
        return dict(prompt)
    prompts = [prompt["prompt"]] if isinstance(prompt["prompt"], str) else prompt["prompt"]
    return {"prompt": [one for one in prompts for _ in range(num)]}


def check_kind(wanted: Iterable[str], made: str) -> None:
    """Raises RequestError if a request wants frames of pixels that the pipeline does not make."""
    for kind in PIXELS.intersection(wanted):
        if kind != made:
            message = f"this pipeline makes no {kind}; it makes {made}"
            raise RequestError(400, message, code="unsupported_model")
