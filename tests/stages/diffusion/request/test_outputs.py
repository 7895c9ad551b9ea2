"""What pipelines return, as pictures."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from omnistage.stages.diffusion.request.outputs import pictures_of, thoughts_of
from omnistage.stages.worker.failure import RequestError

VALUES = np.linspace(0, 1, 4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
BYTES = (VALUES * 255).round().astype(np.uint8)
TENSOR = torch.from_numpy(VALUES).permute(2, 0, 1)


@pytest.mark.parametrize(
    "result",
    [
        {"images": np.stack([VALUES] * 2)},
        {"image": [TENSOR, VALUES]},
        (np.stack([BYTES] * 2),),
        torch.stack([TENSOR] * 2),
        [TENSOR, Image.fromarray(BYTES)],
        {"frames": np.stack([VALUES] * 2)[None]},
    ],
    ids=["images", "list in a mapping", "tuple", "tensor", "list", "frames"],
)
def test_every_form_is_the_same_pictures(result: Any) -> None:
    num = 1 if isinstance(result, dict) and "frames" in result else 2
    pictures = pictures_of(result, num)
    assert len(pictures) == 2
    for picture in pictures:
        np.testing.assert_array_equal(picture, BYTES)


@pytest.mark.parametrize(
    ("thoughts", "num", "expected"),
    [
        (["a", "b"], 4, ["a", "a", "b", "b"]),
        (["a", ""], 2, ["a", ""]),
        ([], 2, []),
        (None, 2, []),
    ],
)
def test_each_picture_has_the_thought_of_its_prompt(
    thoughts: list[str] | None, num: int, expected: list[str]
) -> None:
    assert thoughts_of(SimpleNamespace(thoughts=thoughts), num) == expected
    assert thoughts_of({"images": []}, num) == []


def test_values_are_rounded_and_clipped() -> None:
    values = torch.tensor([-0.5, 0.0, 0.5, float("nan")]).view(1, 1, 2, 2)
    (picture,) = pictures_of(values, 1)
    assert picture.shape == (2, 2, 3)
    assert picture[..., 0].tolist() == [[0, 0], [128, 0]]


def test_an_empty_batch_has_no_pictures() -> None:
    assert pictures_of([], 0) == []
    assert pictures_of(torch.zeros(0, 3, 4, 4), 0) == []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "made 0 pictures for a batch of 2"),
        (torch.zeros(3, 3, 4, 4), "made 3 pictures for a batch of 2"),
        ([TENSOR, None], "made no picture 2 of 2"),
        (TENSOR, "returned a Tensor of shape [3, 4, 6]"),
        ([TENSOR, torch.zeros(5, 4, 4)], "made a picture of shape [5, 4, 4]"),
        ([VALUES.astype(int)] * 2, "made a picture of int64"),
        ({"latents": TENSOR}, "returned latents only"),
        ({}, "returned an empty mapping"),
        (None, "returned a NoneType"),
        ("a cat", "returned a str"),
    ],
)
def test_what_are_no_pictures_is_named(result: Any, message: str) -> None:
    with pytest.raises(RequestError) as failed:
        pictures_of(result, 2)
    assert message in str(failed.value)
    assert failed.value.status == 500


@pytest.mark.parametrize("as_list", [True, False])
def test_a_picture_in_layers_is_all_of_them_picture_by_picture(as_list: bool) -> None:
    """As Diffusers parts two pictures of three layers: the first gets one of the second's."""
    layers = np.stack([VALUES * share for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)])
    parts = [layers[:4], layers[4:]]
    result = {"images": [list(part) for part in parts] if as_list else parts}
    pictures = pictures_of(result, 2)
    wanted = (layers * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(np.stack(pictures), wanted)


def test_layers_that_are_no_whole_pictures_are_refused() -> None:
    layers = np.stack([VALUES] * 5)
    with pytest.raises(RequestError, match="made 5 layers of 2 pictures for a batch of 2"):
        pictures_of({"images": [layers[:3], layers[3:]]}, 2)
