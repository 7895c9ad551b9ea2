"""ControlNets from folders of their own, beside a pipeline that has none."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from PIL import Image
from support.tiny_pipelines import quiet
from support.tiny_pipelines.beside import with_second, written
from support.tiny_pipelines.calls import arguments
from support.tiny_pipelines.compare import PIXEL, compare, distance
from support.tiny_pipelines.media import SIDE, any_image

from omnistage.stages.diffusion.loading import loading as loading_module
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.request.tasks import Tasks

CPU = torch.device("cpu")
SEVERAL = "StableDiffusionXLControlNetPipeline"
NAMES = (
    "StableDiffusionControlNetPipeline",
    SEVERAL,
    "StableDiffusionXLControlNetUnionPipeline",
    "StableDiffusion3ControlNetPipeline",
    "FluxControlNetPipeline",
    "QwenImageControlNetPipeline",
)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:diffusers.*")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pixels(pipeline: Any, **given: Any) -> Any:
    with torch.inference_mode():
        return pipeline(**{**arguments(pipeline, 0), **given}).images


def control_of(pipeline: Any) -> str:
    known = inspect.signature(pipeline.__call__).parameters
    return "control_image" if "control_image" in known else "image"


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_with_one_beside_it_equals_the_bare_one_alone_and_three_at_once(
    name: str, tmp_path: Path
) -> None:
    bare, model, net = written(name, tmp_path)
    other = {control_of(bare): Image.new("RGB", (SIDE, SIDE))}
    assert distance([pixels(bare)], [pixels(bare, **other)]) > PIXEL, "it changes nothing"
    loaded = LoadOptions.of({"controlnet": str(net)}).load(str(model))
    assert type(loaded.pipeline) is type(bare)
    assert "controlnet" in loaded.parts.resident
    made = compare(type(bare), (bare, loaded.pipeline))
    assert made.is_equal, made
    assert made.shared == "all"


def test_several_get_an_image_and_a_scale_each(tmp_path: Path) -> None:
    bare, model, net = written(SEVERAL, tmp_path)
    second, both = with_second(bare, tmp_path / "second")
    folders = [str(net), str(second)]
    pipeline = LoadOptions.of({"controlnet": folders}).load(str(model)).pipeline
    given: dict[str, Any] = {
        "image": [any_image(1), any_image(2)],
        "controlnet_conditioning_scale": [0.5, 0.8],
        "control_guidance_start": [0.0, 0.4],
    }
    wanted = pixels(quiet(both), **given)
    assert distance([pixels(pipeline, **given)], [wanted]) <= PIXEL
    turned = {**given, "image": given["image"][::-1]}
    assert distance([pixels(pipeline, **turned)], [wanted]) > PIXEL


def test_requests_without_a_control_image_are_the_plain_pipeline_s(tmp_path: Path) -> None:
    _, model, net = written("FluxControlNetPipeline", tmp_path)
    pipeline = LoadOptions.of({"controlnet": str(net)}).load(str(model)).pipeline
    tasks = Tasks.find(pipeline)
    made = {
        given: type(task.pipeline).__name__
        for given in ((), ("control_image",), ("image",), ("image", "control_image"))
        if (task := tasks.of(*given)) is not None
    }
    assert made == {
        (): "FluxPipeline",
        ("control_image",): "FluxControlNetPipeline",
        ("image",): "FluxImg2ImgPipeline",
        ("image", "control_image"): "FluxControlNetImg2ImgPipeline",
    }
    plain = diffusers.FluxPipeline.from_pretrained(model)
    task = tasks.of()
    assert task is not None
    assert distance([pixels(task.pipeline)], [pixels(quiet(plain))]) <= PIXEL


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_their_weights_count_towards_the_memory(
    load_format: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, model, net = written(SEVERAL, tmp_path)
    counted: list[dict[str, int]] = []

    class Fits:
        def __init__(self, *given: Any) -> None:
            counted.append(given[-1])

        def check(self, takes_turns: bool) -> None:
            """It does."""

    monkeypatch.setattr(loading_module, "Start", Fits)
    for more in ({}, {"controlnet": [str(net)] * number}):
        LoadOptions.of({"load_format": load_format, **more}).read(str(model))
    plain, both = counted
    num_bytes = sum(one.numel() * one.itemsize for one in bare.controlnet.parameters())
    assert both == {**plain, "controlnet": number * num_bytes}


def test_other_ranks_have_none(tmp_path: Path) -> None:
    _, model, net = written(SEVERAL, tmp_path)
    loaded = LoadOptions.of({"controlnet": str(net)}).load_denoisers(str(model), CPU)
    assert loaded.pipeline.controlnet is None
    assert list(loaded.parts.dit) == ["unet"]
