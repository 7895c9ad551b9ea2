"""What is read from a stream's bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.bench.events import Delta, LineReader, decode_event, error_message, payload


@given(st.lists(st.binary(max_size=40)), st.integers(1, 7))
def test_lines_are_the_same_however_a_stream_is_cut(lines: list[bytes], size: int) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines)
    cutter = LineReader()
    found = []
    for start in range(0, len(stream), size):
        found += cutter.feed(stream[start : start + size])
    assert found == lines


@pytest.mark.parametrize(
    ("line", "data"),
    [
        (b"data: {}", b"{}"),
        (b"data:{}\r", b"{}"),
        (b"data: [DONE]", b"[DONE]"),
        (b": keep-alive", None),
        (b"event: error", None),
        (b"", None),
    ],
)
def test_only_data_lines_have_data(line: bytes, data: bytes | None) -> None:
    assert payload(line) == data


def delta(**fields: Any) -> Delta:
    return msgspec.convert(fields, Delta)


def test_text_is_content_a_transcript_or_reasoning() -> None:
    told: list[dict[str, Any]] = [
        {"content": "a"},
        {"audio": {"transcript": "a"}},
        {"reasoning": "a"},
        {"reasoning_content": "a"},
    ]
    silent: list[dict[str, Any]] = [{"content": ""}, {"content": None}, {"audio": {"data": "A"}}]
    assert all(delta(**fields).text(is_sound=False) for fields in told)
    assert not any(delta(**fields).text(is_sound=False) for fields in silent)


def test_content_that_is_sound_is_no_text() -> None:
    assert not delta(content="AAAA").text(is_sound=True)
    assert delta(content="AAAA").sound(is_sound=True) == "AAAA"
    assert delta(content="AAAA").sound(is_sound=False) is None
    assert delta(audio={"data": "BBBB"}).sound(is_sound=False) == "BBBB"


def test_images_are_counted_in_both_places() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    assert delta(images=[image, image]).num_images() == 2
    assert delta(content=[{"type": "text", "text": "a"}, image]).num_images() == 1
    assert delta(content="a").num_images() == 0


def test_fields_that_are_not_needed_are_not_judged() -> None:
    event = decode_event(b'{"id": 3, "choices": [{"delta": {"role": 1}}], "usage": null}')
    assert event.choices[0].delta == Delta()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no slot", "code": null}}', "no slot"),
        (b'{"message": "no slot"}', "no slot"),
        (b'{"error": "no slot"}', "no slot"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<h1>Bad Gateway</h1>\n", "<h1>Bad Gateway</h1>"),
        (b"[1]", "[1]"),
    ],
)
def test_an_error_says_its_message(body: bytes, message: str) -> None:
    assert error_message(body) == message
