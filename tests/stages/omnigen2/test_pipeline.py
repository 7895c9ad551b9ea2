"""OmniGen2's pipeline beside the published one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from references.omnigen2_drawings import DRAWINGS, STEPS, Drawing, noise
from support.oracles.omnigen2 import Pictures, Recorded, bare_omnigen2, recorded
from support.servers.image_requests import is_same


@pytest.fixture(scope="module")
def pipeline(tiny_omnigen2: Path) -> Any:
    return bare_omnigen2(tiny_omnigen2)


@pytest.fixture(scope="module")
def published(tiny_omnigen2: Path) -> Recorded:
    return recorded(tiny_omnigen2)


def drawn(pipeline: Any, drawing: Drawing) -> Pictures:
    made = pipeline(
        prompt=drawing.prompt,
        input_images=drawing.images or None,
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(drawing.seed),
        output_type="np",
        **drawing.sides,
        **drawing.arguments,
    ).images
    pictures: Pictures = (made * 255).round().astype(np.uint8)
    return pictures


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda one: one.name)
def test_images_equal_those_of_the_published_code(
    drawing: Drawing, pipeline: Any, published: Recorded
) -> None:
    made = drawn(pipeline, drawing)
    wanted = published.drawings[drawing.name]
    assert made.shape == wanted.shape
    assert is_same(made, wanted)
    assert made.std() > 10


def test_recorded_images_differ_where_what_they_are_made_of_does(
    pipeline: Any, published: Recorded
) -> None:
    of_words, of_image = DRAWINGS[0], DRAWINGS[5]
    other = Drawing(of_words.name, "two cats", of_words.size)
    assert not is_same(drawn(pipeline, other), published.drawings[of_words.name])
    without = Drawing(of_image.name, of_image.prompt, of_image.size, ((64, 40),))
    assert not is_same(drawn(pipeline, without), published.drawings[of_image.name])


@pytest.mark.parametrize(
    ("given", "sides", "message"),
    [
        ([(64, 64)] * 6, {}, "at most 5"),
        ([(8, 64)], {}, "too small"),
        ([(4000, 20)], {}, "too narrow"),
        ([], {"height": 50, "width": 64}, "multiples of 16"),
    ],
    ids=["six images", "small", "narrow", "size"],
)
def test_what_cannot_be_drawn_is_refused(
    given: list[tuple[int, int]], sides: dict[str, int], message: str, pipeline: Any
) -> None:
    images = [noise(size, 0) for size in given]
    with pytest.raises(ValueError, match=message):
        pipeline(prompt="a cat", input_images=images, **sides)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((2048, 1024), (512, 1024)), ((1023, 700), (688, 1008)), ((16, 31), (16, 16))],
)
def test_large_images_to_refer_to_are_reduced(
    size: tuple[int, int], wanted: tuple[int, int], pipeline: Any
) -> None:
    assert pipeline._reduced(Image.new("RGB", size)) == wanted
