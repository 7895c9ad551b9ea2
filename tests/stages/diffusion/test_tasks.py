"""Which pipelines there are over one set of weights; that they share the steps of one engine."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image
from support.tiny_pipelines import PIPELINES

from omnistage.stages.diffusion.edits import fitting_size, picture_arguments, pictures_for_warm_up
from omnistage.stages.diffusion.step_batcher import StepBatcher
from omnistage.stages.diffusion.tasks import Tasks, arguments_of, makes_alpha
from omnistage.stages.failure import RequestError

SIDE = 64


def picture(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 255, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture(scope="module")
def qwen_image() -> Any:
    pipeline = PIPELINES["qwen-image"].make()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("name", PIPELINES)
def test_all_that_diffusers_has_over_the_same_weights(name: str) -> None:
    pipeline = PIPELINES[name].make()
    tasks = Tasks.find(pipeline)
    assert tasks.text is pipeline
    for edits in (tasks.image, tasks.mask):
        assert edits.transformer is pipeline.transformer
        assert edits.vae is pipeline.vae
    assert "image" in arguments_of(tasks.image)
    assert "mask_image" in arguments_of(tasks.mask)


def test_a_pipeline_for_edits_is_its_own(qwen_image: Any) -> None:
    image, mask = Tasks.find(qwen_image).image, Tasks.find(qwen_image).mask
    assert Tasks.find(image).image is image
    assert type(Tasks.find(image).text) is type(qwen_image)
    assert Tasks.find(mask).mask is mask
    assert set(pictures_for_warm_up(mask)) == {"image", "mask_image"}
    assert set(pictures_for_warm_up(qwen_image)) == set()
    flux = PIPELINES["flux"].make()
    kontext = FluxKontextPipeline(**flux.components)
    assert Tasks.find(kontext).text is kontext
    assert Tasks.find(kontext).image is kontext


def test_what_there_is_no_pipeline_for_is_a_400(qwen_image: Any) -> None:
    only_words = Tasks(qwen_image, None, None)
    only_edits = Tasks(None, Tasks.find(qwen_image).image, None)
    cases = [
        (only_words, 1, False, "image"),
        (only_words, 1, True, "mask"),
        (only_edits, 0, False, None),
        (only_edits, 2, False, "image"),
    ]
    for tasks, num_images, has_mask, param in cases:
        with pytest.raises(RequestError) as refusal:
            tasks.choose(num_images, has_mask)
        assert (refusal.value.status, refusal.value.param) == (400, param)


@pytest.mark.parametrize("has_mask", [False, True])
def test_edits_beside_pictures_from_words_equal_the_bare_pipelines(
    qwen_image: Any, has_mask: bool
) -> None:
    tasks = Tasks.find(qwen_image)
    edits = tasks.choose(1, has_mask)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:32] = 255
    given = picture_arguments(edits, [picture(1)], mask if has_mask else None, {"width"})

    def request(seed: int) -> dict[str, Any]:
        return PIPELINES["qwen-image"].request(seed, 4, 2.0)

    with torch.inference_mode():
        wanted = [qwen_image(**request(1)).images, edits(**request(2), **given).images]
    once = {**request(0), "num_inference_steps": 1}
    engine = StepBatcher(qwen_image, once, {**once, "num_images_per_prompt": 2})
    try:
        jobs = [engine.submit(**request(1)), engine.submit(edits, **request(2), **given)]
        made = [job.result.result(30).images for job in jobs]
    finally:
        engine.close()
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
    edits = Tasks.find(qwen_image).image
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    arguments = picture_arguments(edits, [pixels], None, {"prompt"})
    assert (arguments["width"], arguments["height"]) == fitting
    assert isinstance(arguments["image"], Image.Image)


def test_the_alpha_channel_is_the_vae_s(qwen_image: Any) -> None:
    assert not makes_alpha(qwen_image)
    with_alpha = PIPELINES["sd3"].make()
    with_alpha.vae.register_to_config(out_channels=4)
    assert makes_alpha(with_alpha)
