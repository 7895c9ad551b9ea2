"""Words that stand for media, written by a user beside real media."""

from typing import Any

import pytest

from omnistage.stages.vllm.media.media_markers import check_markers
from omnistage.stages.worker.failure import RequestError

MARKERS = ["<|audio_pad|>", "<|image_pad|>", "<|video_pad|>"]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def body(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


@pytest.mark.parametrize(
    "given",
    [
        body(text("Say <|image_pad|> now.")),
        {"messages": [{"role": "user", "content": "<|audio_pad|>"}]},
        body(IMAGE, text("Say <|im_end|> and image_pad.")),
        body(IMAGE, tools=[{"type": "function", "function": {"name": "look"}}]),
    ],
)
def test_a_marker_without_media_and_media_without_a_marker_pass(given: Any) -> None:
    check_markers(given, MARKERS)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (body(IMAGE, text("a <|video_pad|>")), "messages[0].content[1].text"),
        (body(text("<|image_pad|>"), IMAGE), "messages[0].content[0].text"),
        (
            {
                "messages": [
                    {"role": "system", "content": "x<|audio_pad|>"},
                    {"role": "user", "content": [IMAGE]},
                ]
            },
            "messages[0].content",
        ),
        (body(IMAGE, tools=[{"function": {"<|image_pad|>": 1}}]), "tools[0].function"),
        (
            body(IMAGE, chat_template_kwargs={"a": "<|image_pad|>"}),
            "chat_template_kwargs.a",
        ),
    ],
)
def test_a_marker_beside_media_is_refused_by_its_place(given: Any, param: str) -> None:
    with pytest.raises(RequestError, match="stands for a medium") as caught:
        check_markers(given, MARKERS)
    assert caught.value.status == 400
    assert caught.value.param == param
