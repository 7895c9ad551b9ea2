"""Media that are more than an engine's encoder takes: refused by our words, which name the part."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.answers.chat import request_error
from omnistage.stages.vllm.answers.encoder_room import check_each, with_part

PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "a"},
    {"type": "audio_url", "audio_url": {}},
    {"type": "image_url", "image_url": {}},
    {"type": "audio_url", "audio_url": {}},
]
BODY = {
    "messages": [
        {"role": "system", "content": "b"},
        {"role": "user", "content": PARTS},
        {"role": "user", "content": [{"type": "video_url", "video_url": {}}]},
    ]
}


def of(*counts: int) -> list[Any]:
    return [SimpleNamespace(get_num_embeds=lambda count=count: count) for count in counts]


@pytest.mark.parametrize(
    ("placeholders", "place"),
    [
        ({"audio": of(10, 11)}, "messages[1].content[3]"),
        ({"audio": of(11), "image": of(3)}, "messages[1].content[1]"),
        ({"image": of(12)}, "messages[1].content[2]"),
        ({"video": of(12)}, "messages[2].content[0]"),
        ({"audio": of(1, 1, 11), "video": of(1)}, "messages[2].content[0]"),  # a heard video's
    ],
)
def test_the_refusal_names_the_part_and_what_is_allowed(
    placeholders: dict[str, Any], place: str
) -> None:
    with pytest.raises(ValueError, match="more than the 10") as caught:
        check_each(placeholders, 10)
    refusal = request_error(caught.value, BODY)
    assert (refusal.status, refusal.param) == (400, place)
    assert refusal.message.startswith(f"{place} has 1")


def test_what_fits_passes() -> None:
    check_each({"audio": of(10), "image": of(1, 2)}, 10)


def test_other_messages_stay_as_they_are() -> None:
    assert with_part("audio is wrong", BODY) == ("audio is wrong", None)
    assert with_part("audio[9] has 3 tokens", BODY) == ("audio[9] has 3 tokens", None)
    assert with_part("audio[0] has 3 tokens", {"prompt": "x"}) == ("audio[0] has 3 tokens", None)
