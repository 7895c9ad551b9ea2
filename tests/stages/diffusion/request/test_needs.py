"""The media that a pipeline needs, found by calls that end at its denoiser."""

from typing import Any

import pytest
from diffusers import (
    FluxKontextPipeline,
    QwenImageImg2ImgPipeline,
    QwenImageInpaintPipeline,
    WanVideoToVideoPipeline,
)
from support.models.media_pipelines import (
    make_controlled,
    make_flux_fill,
    make_vace,
    make_wan_of_pictures,
)
from support.tiny_pipelines import quiet

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.request.needs import needed_fields, warm_up_arguments
from omnistage.stages.diffusion.request.tasks import PipelineTask

CALL = {"prompt": "a cat", "num_inference_steps": 2, "height": 32, "width": 32}


class OfOthers(QwenImageImg2ImgPipeline):  # type: ignore[misc]
    """A class that Diffusers does not know."""


def over(made: Any, name: str) -> Any:
    """Return a pipeline of a class over the parts of a tiny one."""
    parts = make_tiny(name).components
    return quiet(made(**{key: part for key, part in parts.items() if key != "transformer_2"}))


CASES: list[tuple[Any, set[str]]] = [
    (lambda: make_tiny("qwen-image"), set()),
    (lambda: over(FluxKontextPipeline, "flux"), set()),
    (lambda: over(QwenImageImg2ImgPipeline, "qwen-image"), {"image"}),
    (lambda: over(OfOthers, "qwen-image"), {"image"}),
    (lambda: over(QwenImageInpaintPipeline, "qwen-image"), {"image", "mask"}),
    (lambda: over(WanVideoToVideoPipeline, "wan"), {"video"}),
    (make_wan_of_pictures, {"image"}),
    (make_vace, set()),
    (make_flux_fill, {"image", "mask"}),
    (make_controlled, {"control_image"}),
]


@pytest.mark.parametrize(("make", "needed"), CASES)
def test_a_call_needs_the_least_that_comes_to_its_denoiser(make: Any, needed: set[str]) -> None:
    pipeline = quiet(make())
    denoisers = {"transformer": pipeline.transformer}
    calls: list[int] = []
    pipeline.transformer.register_forward_hook(lambda *_: calls.append(1))
    task = PipelineTask.of(pipeline)
    assert needed_fields(task, denoisers, CALL) == needed
    assert calls == [], "nothing is denoised"
    small = {"max_area": 1024} if isinstance(pipeline, FluxKontextPipeline) else {}
    pipeline(**CALL, **small, **warm_up_arguments(task, needed, {}))
    assert calls
