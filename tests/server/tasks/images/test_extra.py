"""The field `extra` of drawings: numbers, texts, booleans and short lists of them."""

from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import parse_json
from omnistage.server.media.images import InputImages
from omnistage.server.tasks.images.extra import MAX_ARGUMENTS, MAX_DEPTH, MAX_ITEMS, MAX_TEXT
from omnistage.server.tasks.images.schema import EditRequest, ImageRequest
from omnistage.server.tasks.videos.schema import VideoEditRequest, VideoRequest
from omnistage.stage_configs.work import WorkBound

IMAGES = (ImageRequest, EditRequest)
VIDEOS = (VideoRequest, VideoEditRequest)
GOOD = {
    "max_sequence_length": 64,
    "prompt_2": "rain",
    "sigmas": [1.0, 0.5],
    "flag": True,
    "a": None,
}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize("model", IMAGES)
def test_an_image_request_sends_it_on(model: type[ImageRequest]) -> None:
    request = parse(model, {"prompt": "a", "extra": GOOD}).to_request(InputImages())
    assert request.message.fields["extra"] == GOOD
    assert parse(model, {"prompt": "a"}).to_request(InputImages()).message.fields["extra"] is None


@pytest.mark.parametrize("model", VIDEOS)
def test_a_video_request_sends_it_on(model: type[VideoEditRequest]) -> None:
    assert parse(model, {"prompt": "a", "extra": GOOD}).to_fields(WorkBound())["extra"] == GOOD


@pytest.mark.parametrize(
    ("extra", "param", "message"),
    [
        ([], "extra", "valid dictionary"),
        ("{}", "extra", "valid dictionary"),
        ({str(n): 1 for n in range(MAX_ARGUMENTS + 1)}, "extra", "at most 64 items"),
        ({"": 1}, "extra", "must have names of 1 to 100 characters"),
        ({"x" * 101: 1}, "extra", "must have names of 1 to 100 characters"),
        ({"a": {"b": 1}}, "extra.a", "must be a number, string or boolean, or a list of them"),
        ({"a": [1, {"b": 1}]}, "extra.a", "must be a number, string or boolean"),
        ({"a": [None]}, "extra.a", "must be a number, string or boolean"),
        ({"a": [0] * 1_000_000}, "extra.a", "a list of at most 1000 items"),
        ({"a": [[0] * 500] * 3}, "extra.a", "a list of at most 1000 items"),
        ({"a": nested(MAX_DEPTH + 1)}, "extra.a", "nested at most 3 deep"),
        ({"a": nested(500)}, "extra.a", "nested at most 3 deep"),
        ({"a": ["x" * (MAX_TEXT + 1)]}, "extra.a", "strings of at most 32000 characters"),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("model", [*IMAGES, *VIDEOS])
def test_what_is_no_plain_value_is_refused_by_its_place(
    model: Any, extra: Any, param: str, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        parse(model, {"prompt": "a", "extra": extra}).check()
    assert (refused.value.status, refused.value.param) == (400, param)


def test_the_largest_values_are_taken() -> None:
    extra = {"a": [0] * MAX_ITEMS, "b": nested(MAX_DEPTH), "c": "x" * MAX_TEXT}
    parse(ImageRequest, {"prompt": "a", "extra": extra}).check()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("NaN", "finite"),
        ("1e999", "finite"),
        ("1" * 30, "64 bits"),
        ("[" * 10_000 + "]" * 10_000, "nested more than"),
        ("[" + "0," * 1_100_000 + "0]", "values; at most"),
        ('"\\ud800"', "surrogate"),
    ],
    ids=range(6),
)
def test_what_no_json_of_ours_has_is_refused_before(value: str, message: str) -> None:
    body = f'{{"prompt": "a", "extra": {{"sigmas": {value}}}}}'
    with pytest.raises(ApiError, match=message) as refused:
        parse_json(body.encode())
    assert refused.value.status == 400
