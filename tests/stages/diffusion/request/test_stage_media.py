"""Requests with media below the stage: each is what the bare pipeline makes of them."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus, pipeline_qwenimage_layered
from support.models.media_pipelines import GIVEN, Given, picture
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines import quiet

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.request.outputs import pictures_of
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_gateway import ImagePixels
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

STEPS = {"num_inference_steps": 2}
PROMPT = "a cat"


def opened(name: str, given: Given, kind: str, seed: int, **body: Any) -> Opened:
    fields = {"prompt": PROMPT, "n": 1, **STEPS, **given.body, **body}
    named = {f"{field}{i}": one for field, all in given.media.items() for i, one in enumerate(all)}
    media = [GivenMedium(one.rstrip("0123456789"), one) for one in named]
    tensors = {one: Tensor.from_numpy(array) for one, array in named.items()}
    return Opened(name, Request(Draw(fields, media), [kind], seed=seed), tensors)


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines that read or make a megapixel take a sixteenth of it, bare and in a stage."""
    for module in (pipeline_qwenimage_edit_plus, pipeline_qwenimage_layered):
        small = partial(_of_a_sixteenth, module.calculate_dimensions)
        monkeypatch.setattr(module, "calculate_dimensions", small)


def _of_a_sixteenth(whole: Any, area: int, ratio: float) -> Any:
    return whole(area // 16, ratio)


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("name", GIVEN)
async def test_media_reach_the_pipeline_as_its_own_arguments(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    given = GIVEN[name]
    given.write(tmp_path)
    kind = "video" if "num_frames" in given.body else "image"
    stage, outputs = stage_over(tmp_path, **{**given.body, **STEPS})
    await stage.start()
    seeds = range(2)
    asked = [stage.serve(opened(str(seed), given, kind, seed)) for seed in seeds]
    await asyncio.gather(*asked)
    await stage.close()
    bare = quiet(DiffusionPipeline.from_pretrained(tmp_path))
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        arguments = {**STEPS, **given.body, **given.arguments, "output_type": "np"}
        with torch.inference_mode():
            made = bare(prompt=PROMPT, generator=generator, **arguments)
        wanted = np.stack(pictures_of(made, 1)).astype(int)
        assert wanted.std() > 1
        assert np.abs(outputs.pixels(str(seed)) - wanted).max() <= 1
    made = {outputs.pixels(str(seed)).tobytes() for seed in seeds}
    assert len(made) == len(seeds)
    sent = [one.message for one in outputs.chunks["0"] if isinstance(one.message, ImagePixels)]
    is_layered = name == "layered"
    assert [one.layer for one in sent] == (list(range(4)) if is_layered else [None] * len(sent))
    assert outputs.pixels("0").shape[-1] == (4 if is_layered else 3)


async def test_what_a_pipeline_has_no_place_for_is_a_400(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    given = GIVEN["wan-i2v"]
    given.write(tmp_path)
    stage, _ = stage_over(tmp_path, **{**given.body, **STEPS})
    await stage.start()
    image = given.media["image"]
    video = np.zeros((5, 32, 32, 3), np.uint8)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "input_reference"),
        ({"last_image": image}, "input_reference"),
        ({"image": [picture(1), picture(2)]}, "input_reference"),
        ({"image": image, "control_video": [video]}, "control_video"),
        ({"image": image, "mask": [video[0, ..., 0]]}, "mask"),
    ]
    for media, param in cases:
        with pytest.raises(RequestError) as refusal:
            await stage.serve(opened("a", Given(given.make, media, {}, given.body), "video", 0))
        assert (refusal.value.status, refusal.value.param) == (400, param)
    await stage.close()
