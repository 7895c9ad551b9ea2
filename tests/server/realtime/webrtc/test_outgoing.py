"""Audio on its way to a listener: given out by the clock, reported, and cut off where it was."""

from collections.abc import Iterable

import pytest

from omnistage.server.realtime.webrtc.outgoing import CutAnswer, OutgoingAudio, QueuedAudio

SECOND = 24_000


def audio(response: str, num_samples: int, item: str = "") -> QueuedAudio:
    return QueuedAudio(response, item or f"item_{response}", 0, b"\x01\x02" * num_samples)


class Heard(OutgoingAudio):
    def __init__(self) -> None:
        self.notices: list[tuple[str, str]] = []
        super().__init__(lambda what, response: self.notices.append((what, response)))

    def play(self, num_samples: int, frame: int = 480) -> bytes:
        return b"".join(self.take(frame) for _ in range(num_samples // frame))


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_frames_are_whole_and_silence_is_between_answers(heard: Heard) -> None:
    assert heard.take(480) == bytes(960)
    heard.add(audio("a", 500))
    assert heard.take(480) == b"\x01\x02" * 480
    assert heard.take(480) == b"\x01\x02" * 20 + bytes(920)


def test_an_answer_starts_with_its_first_frame_and_stops_once_it_is_whole_and_heard(
    heard: Heard,
) -> None:
    heard.add(audio("a", 960))
    assert heard.notices == []
    heard.take(480)
    assert heard.notices == [("started", "a")]
    heard.play(4800)  # it is still made
    assert heard.notices == [("started", "a")]
    heard.add(audio("a", 480))
    heard.end("a")
    assert heard.notices == [("started", "a")]
    heard.take(480)
    assert heard.notices == [("started", "a"), ("stopped", "a")]


@pytest.mark.parametrize("order", [("end", "play"), ("play", "end")])
def test_it_stops_once_whichever_comes_last(order: Iterable[str], heard: Heard) -> None:
    heard.add(audio("a", 480))
    for one in order:
        heard.end("a") if one == "end" else heard.play(960)
    heard.play(960)
    assert heard.notices == [("started", "a"), ("stopped", "a")]


def test_an_answer_without_audio_is_not_reported(heard: Heard) -> None:
    heard.end("a")
    heard.play(960)
    assert heard.notices == []


def test_one_answer_behind_the_other(heard: Heard) -> None:
    for name in "ab":
        heard.add(audio(name, 700))
        heard.end(name)
    heard.play(4800)
    expected = [("started", "a"), ("stopped", "a"), ("started", "b"), ("stopped", "b")]
    assert heard.notices == expected


def test_a_cut_says_how_much_was_heard_and_drops_the_rest(heard: Heard) -> None:
    heard.add(audio("a", SECOND))
    heard.add(audio("a", SECOND))
    heard.play(SECOND + SECOND // 2)
    assert heard.clear() == CutAnswer("item_a", 0, 1500)
    assert heard.notices == [("started", "a"), ("cleared", "a")]
    heard.add(audio("a", 480))  # it is made until the session has heard of it
    assert heard.take(480) == bytes(960)
    heard.end("a")
    assert heard.clear() is None
    heard.add(audio("b", 480))
    assert heard.take(480) != bytes(960)


def test_a_cut_before_the_first_frame_is_at_nothing(heard: Heard) -> None:
    heard.add(audio("a", 480))
    assert heard.clear() == CutAnswer("item_a", 0, 0)
    assert heard.notices == [("cleared", "a")]


def test_a_cut_of_silence_is_none(heard: Heard) -> None:
    assert heard.clear() is None
    heard.add(audio("a", 480))
    heard.end("a")
    heard.play(960)
    assert heard.clear() is None


def test_a_cut_counts_the_item_that_is_heard_alone(heard: Heard) -> None:
    heard.add(audio("a", SECOND, "one"))
    heard.add(audio("a", SECOND, "two"))
    heard.play(SECOND + 4800)
    assert heard.clear() == CutAnswer("two", 0, 200)
