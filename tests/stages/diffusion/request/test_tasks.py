"""Which pipelines there are over one set of weights; that they share the steps of one engine."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FluxFillPipeline,
    FluxKontextInpaintPipeline,
    FluxKontextPipeline,
    IFImg2ImgSuperResolutionPipeline,
    QwenImageControlNetPipeline,
    QwenImageImg2ImgPipeline,
    WanImageToVideoPipeline,
    WanVideoToVideoPipeline,
)
from PIL import Image
from support.tiny_pipelines import Served, Settings, quiet, result

from omnistage.stage_configs.work import fitting_size
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.request.media import fitted, media_arguments
from omnistage.stages.diffusion.request.places import Media, RequestMedium
from omnistage.stages.diffusion.request.tasks import PipelineTask, Tasks, arguments_of, makes_alpha
from omnistage.stages.worker.failure import RequestError

SIDE = 32
NAMES = ("qwen-image", "flux", "sd3")


def picture(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 255, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture(scope="module")
def qwen_image() -> Any:
    return quiet(make_tiny("qwen-image"))


def media(images: int = 0, mask: bool = False, **more: int) -> Media:
    """Blank media of a request: so many of each field."""
    blank = RequestMedium(np.zeros((SIDE, SIDE, 3), np.uint8))
    counts = {"image": images, **more}
    found = {field: [blank] * count for field, count in counts.items() if count}
    return found | ({"mask": [RequestMedium(np.zeros((SIDE, SIDE), np.uint8))]} if mask else {})


def pipeline_for(tasks: Tasks, *fields: str) -> Any:
    task = tasks.of(*fields)
    assert task is not None
    return task.pipeline


@pytest.mark.parametrize("name", NAMES)
def test_all_that_diffusers_has_over_the_same_weights(name: str) -> None:
    pipeline = make_tiny(name)
    tasks = Tasks.find(pipeline)
    assert tasks.first.pipeline is pipeline
    image, mask = pipeline_for(tasks, "image"), pipeline_for(tasks, "image", "mask")
    for edits in (image, mask):
        assert edits.transformer is pipeline.transformer
        assert edits.vae is pipeline.vae
    assert "image" in arguments_of(image)
    assert "mask_image" in arguments_of(mask)


def test_a_pipeline_for_edits_is_its_own(qwen_image: Any) -> None:
    tasks = Tasks.find(qwen_image)
    image, mask = pipeline_for(tasks, "image"), pipeline_for(tasks, "image", "mask")
    assert pipeline_for(Tasks.find(image), "image") is image
    assert type(pipeline_for(Tasks.find(image))) is type(qwen_image)
    assert pipeline_for(Tasks.find(mask), "image", "mask") is mask


def test_an_optional_picture_leaves_the_words() -> None:
    kontext = FluxKontextPipeline(**make_tiny("flux").components)
    tasks = Tasks.find(kontext)
    assert pipeline_for(tasks) is kontext
    assert pipeline_for(tasks, "image") is kontext
    assert type(pipeline_for(tasks, "image", "mask")) is FluxKontextInpaintPipeline


def test_a_pipeline_of_pictures_is_chosen_for_a_video_of_a_picture() -> None:
    wan = quiet(make_tiny("wan"))
    tasks = Tasks.find(wan)
    assert type(pipeline_for(tasks, "video")) is WanVideoToVideoPipeline
    assert tasks.of("image") is None, "its weights take no picture"
    wan.register_to_config(expand_timesteps=True)
    assert type(pipeline_for(Tasks.find(wan), "image")) is WanImageToVideoPipeline
    assert pipeline_for(Tasks.find(wan)) is wan


def test_what_there_is_no_pipeline_for_is_a_400(qwen_image: Any) -> None:
    tasks = Tasks.find(qwen_image)
    only_words = Tasks(tasks.all[:1])
    image, mask = tasks.of("image"), tasks.of("image", "mask")
    assert image is not None
    assert mask is not None
    only_edits, only_masks = (
        Tasks([image]),
        Tasks([PipelineTask.of(object.__new__(FluxFillPipeline))]),
    )
    of_pictures = Tasks([PipelineTask.of(object.__new__(WanImageToVideoPipeline))])
    of_control = Tasks([PipelineTask.of(object.__new__(QwenImageControlNetPipeline))])
    cases: list[tuple[Tasks, Media, str, str]] = [
        (only_words, media(1), "image", "image"),
        (only_words, media(1, mask=True), "image", "image"),
        (only_words, media(control_image=1), "image", "control_image"),
        (only_edits, media(), "image", "image"),
        (only_edits, media(1, mask=True), "image", "mask"),
        (only_edits, media(2), "image", "image"),
        (only_masks, media(1), "image", "mask"),
        (tasks, media(2, mask=True), "image", "image"),
        (of_pictures, media(), "video", "input_reference"),
        (of_pictures, media(last_image=1), "video", "input_reference"),
        (of_pictures, media(1, video=1), "video", "video"),
        (of_control, media(), "image", "control_image"),
        (of_control, media(control_image=2), "image", "control_image"),
    ]
    for found, given, kind, param in cases:
        with pytest.raises(RequestError) as refusal:
            found.choose(given, kind)
        assert (refusal.value.status, refusal.value.param) == (400, param), given.keys()
        assert param in str(refusal.value)


def test_a_refusal_says_what_the_model_takes() -> None:
    tasks = Tasks([PipelineTask.of(object.__new__(WanImageToVideoPipeline))])
    with pytest.raises(RequestError, match="it takes input_reference, last_image"):
        tasks.choose(media(1, control_video=1), "video")


def test_a_picture_without_a_mask_is_repainted_where_strength_leaves_some_of_it(
    qwen_image: Any,
) -> None:
    found = Tasks.find(qwen_image).of("image", "mask")
    assert found is not None
    task, given = Tasks([found]).choose(media(1))
    assert task is found
    assert given["mask"][0].data.shape == (SIDE, SIDE)
    assert (given["mask"][0].data == 255).all()


def test_pictures_beside_a_masked_one_are_its_reference() -> None:
    kontext = FluxKontextPipeline(**make_tiny("flux").components)
    given = {"image": [RequestMedium(picture(1)), RequestMedium(picture(2))], **media(mask=True)}
    task, found = Tasks.find(kontext).choose(given)
    assert type(task.pipeline) is FluxKontextInpaintPipeline
    assert found["image"] == given["image"][:1]
    assert found["reference_image"] == given["image"][1:]


def test_the_second_picture_of_an_upscaler_is_its_original() -> None:
    upscaler: Any = object.__new__(IFImg2ImgSuperResolutionPipeline)
    given = media(2)
    _, found = Tasks([PipelineTask.of(upscaler)]).choose(given)
    assert found == {"image": given["image"][:1], "reference_image": given["image"][1:]}
    with pytest.raises(RequestError, match="takes 1 of image; there are 3"):
        Tasks([PipelineTask.of(object.__new__(QwenImageImg2ImgPipeline))]).choose(media(3))


def test_each_of_several_controlnets_has_a_picture() -> None:
    made: Any = object.__new__(QwenImageControlNetPipeline)
    made.controlnet = type("Several", (), {"nets": [0, 1]})()
    tasks = Tasks([PipelineTask.of(made)])
    assert tasks.choose(media(control_image=2))[0].pipeline is made
    with pytest.raises(RequestError, match="takes 2 of control_image; there are 1"):
        tasks.choose(media(control_image=1))


@pytest.mark.parametrize("has_mask", [False, True])
def test_edits_beside_pictures_from_words_equal_the_bare_pipelines(has_mask: bool) -> None:
    served = Served("qwen-image")
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:16] = 255
    words, wish = Settings(1, 4, 2.0), Settings(2, 4, 2.0)

    def edit(pipeline: Any) -> tuple[Any, dict[str, Any]]:
        given: Media = {"image": [RequestMedium(picture(1))]}
        if has_mask:
            given["mask"] = [RequestMedium(mask)]
        task, given = Tasks.find(pipeline).choose(given)
        arguments = wish.arguments("qwen-image")
        return task.pipeline, {**arguments, **media_arguments(task, given, arguments)}

    bare, arguments = edit(served.bare)
    with torch.inference_mode():
        wanted = [served.expected(words), bare(**arguments).images]
    edits, arguments = edit(served.pipeline)
    jobs = [served.ask(words), served.engine.submit(edits, **arguments)]
    made = [result(job) for job in jobs]
    served.engine.close()
    for one, other in zip(made, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert (made[0] - made[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("size", "fitting"),
    [((64, 64), (64, 64)), ((1000, 57), (992, 48)), ((5, 9000), (16, 4096))],
)
def test_an_edit_has_the_size_of_its_picture(
    qwen_image: Any, size: tuple[int, int], fitting: tuple[int, int]
) -> None:
    assert fitting_size(*size) == fitting
    task = Tasks.find(qwen_image).of("image")
    assert task is not None
    given: Media = {"image": [RequestMedium(np.zeros((size[1], size[0], 3), np.uint8))]}
    given, fields = fitted(task, given, {})
    assert (fields["width"], fields["height"]) == fitting
    assert isinstance(media_arguments(task, given, fields)["image"], Image.Image)


def test_the_alpha_channel_is_the_vae_s(qwen_image: Any) -> None:
    assert not makes_alpha(qwen_image)
    with_alpha = make_tiny("sd3")
    with_alpha.vae.register_to_config(out_channels=4)
    assert makes_alpha(with_alpha)
