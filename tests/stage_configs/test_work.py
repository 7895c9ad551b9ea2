"""How much a request asks for, against what a stage takes."""

import re
from typing import Any

import pytest

from omnistage.stage_configs.work import WorkBound

SIDES = WorkBound(side_multiple=16)
BOUND = WorkBound(1.0, 20.0, "because", width=512, height=512, steps=50, keeps_size=True)


@pytest.mark.parametrize(
    ("body", "picture", "param", "said"),
    [
        ({"width": 1024, "height": 1024}, None, "size", "1024x1024 is 1.05 megapixels at once"),
        ({"n": 4}, None, "n", "4 pictures of 512x512 are 1.05 megapixels"),
        ({"prompt": ["a"] * 4}, None, "n", "4 pictures of 512x512 are 1.05 megapixels"),
        ({"n": 2, "width": 4096, "height": 4096}, None, "size", "are 33.6 megapixels"),
        ({}, (1100, 1000), "image", "1088x992 is 1.08 megapixels"),
        ({"num_frames": 5}, None, "num_frames", "5 frames of 512x512 are 1.31 megapixels"),
        ({"num_frames": 1, "width": 4096, "height": 512}, None, "width", "4096x512 is 2.1 mega"),
        (
            {"num_inference_steps": 80},
            None,
            "num_inference_steps",
            "512x512 in 80 steps is 21 megapixel-steps; this server makes at most 20 "
            "(max_megapixel_steps).",
        ),
        ({"width": 1000, "height": 1000}, None, "num_inference_steps", "in 50 steps"),
        ({"width": 700, "height": 1000, "quality": "medium"}, None, "num_inference_steps", "in 35"),
    ],
)
def test_too_much_is_refused_with_the_limit_and_what_was_asked(
    body: dict[str, Any], picture: tuple[int, int] | None, param: str, said: str
) -> None:
    refusal = BOUND.refusal({"prompt": "a", **body}, picture)
    assert refusal is not None
    assert refusal.param == param
    assert said in refusal.message
    assert "at most 1 (because)." in refusal.message or param == "num_inference_steps"


@pytest.mark.parametrize(
    ("body", "picture"),
    [
        ({}, None),
        ({"width": 1000, "height": 1000, "num_inference_steps": 20}, None),  # as much as allowed
        ({"n": 3, "num_inference_steps": 20}, None),
        ({"width": 256, "height": 256}, (4096, 4096)),  # the size that is asked for is made
        ({"strength": 0.2}, (1000, 1000)),  # ten of fifty steps
        ({"quality": "low", "width": 700, "height": 1000}, None),
    ],
)
def test_what_is_allowed_is_not_refused(
    body: dict[str, Any], picture: tuple[int, int] | None
) -> None:
    assert BOUND.refusal({"prompt": "a", **body}, picture) is None


def test_a_size_that_cannot_be_known_is_not_refused() -> None:
    assert WorkBound(1.0, 1.0).refusal({"prompt": "a", "n": 10}) is None


def test_without_a_bound_nothing_is_refused() -> None:
    body = {"prompt": "a", "width": 4096, "height": 4096, "n": 10, "num_inference_steps": 1000}
    assert WorkBound().refusal(body) is None


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"width": 100, "height": 100, "size": "100x100"}, "size", "100x100 is not.* as 96x96"),
        ({"width": 65, "height": 64, "size": "65x64"}, "size", "65x64 is not .* as 64x64"),
        ({"width": 64, "height": 72}, "height", "64x72 is not .* such as 64x64"),
        ({"width": 17, "height": None, "num_frames": 5}, "width", "17 is not .* such as 16"),
        ({"width": 3, "height": 4}, "width", "such as 16x16"),
        ({"width": 65, "height": 65, "num_frames": 5}, "width", "such as 64x64"),
    ],
)
def test_a_size_that_is_not_made_is_refused_with_the_next(
    body: dict[str, Any], param: str, said: str
) -> None:
    refusal = SIDES.refusal({"prompt": "a", **body})
    assert refusal is not None
    assert (refusal.param, refusal.is_too_much) == (param, False)
    assert re.search(said, refusal.message)
    assert "each side must be a multiple of 16" in refusal.message


@pytest.mark.parametrize(
    "body", [{}, {"width": None, "height": None}, {"width": 64, "height": 4096}, {"width": 48}]
)
def test_a_size_that_is_made_is_not_refused(body: dict[str, Any]) -> None:
    assert SIDES.refusal({"prompt": "a", **body}) is None
    assert SIDES.refusal({"prompt": "a", **body}, (100, 65)) is None  # an image's own is rounded


@pytest.mark.parametrize(
    ("step", "seconds", "fps", "frames"),
    [
        (1, 4, 16, 64),
        (1, 0.01, 16, 1),
        (4, 4, 16, 65),
        (4, 5, 16, 81),
        (4, 0.1, 16, 1),
        (8, 4, 24, 97),
        (8, 5, 24, 121),
    ],
)
def test_seconds_are_the_nearest_number_of_frames_that_is_made(
    step: int, seconds: float, fps: float, frames: int
) -> None:
    assert WorkBound(frame_step=step).frames_of(seconds, fps) == frames


def test_a_video_of_unknown_length_is_not_one_frame() -> None:
    body = {"prompt": "a", "num_frames": None, "width": 1000, "height": 1000}
    bound = WorkBound(2.0, reason="because", num_frames=None)
    refusal = bound.refusal(body)
    assert refusal is not None
    assert (refusal.param, refusal.is_too_much) == ("num_frames", False)
    assert bound.refusal({**body, "num_frames": 2}) is None
    assert WorkBound(num_frames=None).refusal(body) is None
    counted = WorkBound(2.0, reason="because", num_frames=121).refusal(body)
    assert counted is not None
    assert "121 frames of 1000x1000 are 121 megapixels" in counted.message
