"""Which pipelines there are over one set of weights; that they share the steps of one engine."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image
from support.tiny_pipelines import Served, Settings, quiet, result

from omnistage.stage_configs.work import fitting_size
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.request.edits import picture_arguments, pictures_for_warm_up
from omnistage.stages.diffusion.request.tasks import Tasks, arguments_of, makes_alpha
from omnistage.stages.worker.failure import RequestError

SIDE = 32
NAMES = ("qwen-image", "flux", "sd3")


def picture(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 255, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture(scope="module")
def qwen_image() -> Any:
    return quiet(make_tiny("qwen-image"))


@pytest.mark.parametrize("name", NAMES)
def test_all_that_diffusers_has_over_the_same_weights(name: str) -> None:
    pipeline = make_tiny(name)
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
    flux = make_tiny("flux")
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
def test_edits_beside_pictures_from_words_equal_the_bare_pipelines(has_mask: bool) -> None:
    served = Served("qwen-image")
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:16] = 255
    words, wish = Settings(1, 4, 2.0), Settings(2, 4, 2.0)

    def edit(pipeline: Any) -> tuple[Any, dict[str, Any]]:
        edits = Tasks.find(pipeline).choose(1, has_mask)
        arguments = wish.arguments("qwen-image")
        given = picture_arguments(edits, [picture(1)], mask if has_mask else None, arguments)
        return edits, {**arguments, **given}

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
    edits = Tasks.find(qwen_image).image
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    arguments = picture_arguments(edits, [pixels], None, {"prompt"})
    assert (arguments["width"], arguments["height"]) == fitting
    assert isinstance(arguments["image"], Image.Image)


def test_the_alpha_channel_is_the_vae_s(qwen_image: Any) -> None:
    assert not makes_alpha(qwen_image)
    with_alpha = make_tiny("sd3")
    with_alpha.vae.register_to_config(out_channels=4)
    assert makes_alpha(with_alpha)
