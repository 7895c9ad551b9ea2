"""Images to edit, as both halves read them."""

import numpy as np
import pytest
from references.omnigen2_drawings import noise

from omnistage.stages.glm_image.checkpoint.tiny import make_processor
from omnistage.stages.glm_image.sources import fitting, size_after


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((64, 96), (64, 96)),
        ((70, 90), (64, 96)),
        ((33, 32), (32, 32)),
        ((4000, 2000), (2048, 1024)),
    ],
)
def test_an_image_is_read_at_a_size_whose_ids_have_places_in_it(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    processor = make_processor().image_processor
    image = fitting(processor, np.asarray(noise(size, 0)))
    assert image.size == expected
    assert fitting(processor, np.asarray(image)) == image
    grid = processor(images=[image], return_tensors="pt")["image_grid_thw"].tolist()
    assert grid == [[1, expected[1] // 32, expected[0] // 32]]


def test_what_is_transparent_is_white() -> None:
    image = np.zeros((64, 64, 4), np.uint8)
    image[32:, :, 3] = 255
    pixels = np.asarray(fitting(make_processor().image_processor, image))
    assert (pixels[:32] == 255).all()
    assert not pixels[32:].any()


@pytest.mark.parametrize(
    ("size", "expected"),
    [((64, 96), (96, 64)), ((2048, 1024), (704, 1440)), ((32, 2048), (2048, 32))],
)
def test_an_edit_without_a_size_is_as_large_as_its_image_but_not_too_large(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert size_after(noise(size, 0)) == expected
