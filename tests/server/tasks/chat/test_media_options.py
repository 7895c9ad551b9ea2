"""How much of media a model gets: what a request and its parts say, as one value each."""

from typing import Any

import pytest
from support.api.prompts import PICTURE, SHORT, image_part, sound_part, text, video_part

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import parse
from omnistage.server.tasks.chat.media_options import (
    MediaOptions,
    ProcessorOptions,
    check_heard,
    media_options,
)
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

OMNI = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "tiny")
TEXT = load_graph(GRAPHS / "vllm_text.yaml", "tiny")
VIDEO, IMAGE = video_part(b"film"), image_part(PICTURE)


def turns(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be kind."}, {"role": "user", "content": list(parts)}]


def options(*parts: dict[str, Any], processor: Any = None, loader: Any = None) -> dict[str, Any]:
    return media_options(
        None if processor is None else ProcessorOptions(**processor),
        None if loader is None else parse(MediaOptions, loader),
        turns(*parts, text("What?")),
    )


def test_a_request_that_says_nothing_leaves_the_model_s_own() -> None:
    assert options(VIDEO, IMAGE) == {}
    assert options(VIDEO, processor={"use_audio_in_video": False}) == {}


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ({"fps": 2, "min_frames": 4, "max_pixels": 4096}, {}),
        ({}, {"processor": {"fps": 2, "min_frames": 4, "max_pixels": 4096}}),
        (
            {"max_pixels": 4096},
            {"processor": {"min_frames": 4}, "loader": {"video": {"fps": 2, "min_frames": 4}}},
        ),
    ],
)
def test_wherever_a_request_says_it_a_stage_gets_the_same(
    part: dict[str, Any], given: dict[str, Any]
) -> None:
    assert options({**VIDEO, **part}, **given) == {
        "mm_processor_kwargs": {"fps": 2, "max_pixels": 4096},
        "media_io_kwargs": {"video": {"fps": 2, "min_frames": 4}},
    }


def test_a_frame_s_rate_says_nothing_of_images() -> None:
    found = options({**VIDEO, "fps": 1}, {**IMAGE, "fps": "no field of an image"})
    assert found["media_io_kwargs"] == {"video": {"fps": 1}}


@pytest.mark.parametrize(
    ("parts", "given", "param"),
    [
        ([{**VIDEO, "fps": 0}], {}, "messages[1].content[0].fps"),
        ([{**VIDEO, "fps": 31}], {}, "messages[1].content[0].fps"),
        ([{**VIDEO, "max_frames": 769}], {}, "messages[1].content[0].max_frames"),
        ([{**VIDEO, "min_frames": 1}], {}, "messages[1].content[0].min_frames"),
        ([{**VIDEO, "min_frames": 8, "max_frames": 4}], {}, "messages[1].content[0]"),
        ([{**IMAGE, "max_pixels": 12_845_057}], {}, "messages[1].content[0].max_pixels"),
        ([{**IMAGE, "min_pixels": "many"}], {}, "messages[1].content[0].min_pixels"),
        ([{**VIDEO, "fps": 1}, {**VIDEO, "fps": 2}], {}, "messages[1].content[1].fps"),
        ([{**VIDEO, "fps": 1}, VIDEO], {}, "messages[1].content[1].fps"),
        ([{**VIDEO, "max_pixels": 4096}, IMAGE], {}, "messages[1].content[1].max_pixels"),
        ([{**VIDEO, "fps": 1}], {"processor": {"fps": 2}}, "messages[1].content[0].fps"),
        (
            [VIDEO],
            {"processor": {"fps": 2}, "loader": {"video": {"fps": 3}}},
            "media_io_kwargs.video.fps",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_at_its_place(
    parts: list[dict[str, Any]], given: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        options(*parts, **given)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_bounds_from_two_places_are_compared() -> None:
    with pytest.raises(ApiError, match="min_frames 8 exceeds max_frames 4"):
        options({**VIDEO, "min_frames": 8}, processor={"max_frames": 4})


def body(*parts: dict[str, Any]) -> dict[str, Any]:
    return {**options(*parts, processor={"use_audio_in_video": True}), "messages": turns(*parts)}


def test_videos_are_heard_by_a_model_that_can() -> None:
    asked = body(VIDEO, IMAGE)
    assert asked["mm_processor_kwargs"] == {"use_audio_in_video": True}
    check_heard(asked, OMNI)


def test_videos_are_not_heard_by_another_model_nor_beside_other_sounds() -> None:
    with pytest.raises(ApiError, match="does not hear videos") as caught:
        check_heard(body(VIDEO), TEXT)
    assert caught.value.param == "mm_processor_kwargs.use_audio_in_video"
    with pytest.raises(ApiError, match=r"as in messages\[1\]\.content\[1\]"):
        check_heard(body(VIDEO, sound_part(SHORT)), OMNI)
