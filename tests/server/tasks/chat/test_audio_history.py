"""How long spoken answers are remembered, and how many."""

from types import SimpleNamespace

import pytest

from omnistage.server.tasks.chat import audio_history
from omnistage.server.tasks.chat.audio_history import OVERHEAD_BYTES, AudioHistory, RememberedAnswer

NOW = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    monkeypatch.setattr(audio_history, "time", SimpleNamespace(time=lambda: now[0]))
    return now


def said(text: str, lives_s: int = 60) -> RememberedAnswer:
    return RememberedAnswer(text, int(NOW) + lives_s)


def test_an_answer_is_known_until_it_expires(clock: list[float]) -> None:
    history = AudioHistory()
    history.remember("a", said("hello"))
    clock[0] = NOW + 59
    assert history.transcript("a") == "hello"
    clock[0] = NOW + 60
    assert history.transcript("a") is None
    assert history.transcript("b") is None


def test_the_oldest_go_when_the_bytes_are_used_up(clock: list[float]) -> None:
    size = said("é" * 50).num_bytes
    assert size == OVERHEAD_BYTES + 100
    history = AudioHistory(max_bytes=3 * size)
    for name in "abcd":
        history.remember(name, said("é" * 50))
    assert [history.transcript(name) is None for name in "abcd"] == [True, False, False, False]
    history.remember("e", said("x" * 3 * size))
    assert [history.transcript(name) is None for name in "bcde"] == [True] * 4
    history.remember("f", said("short"))
    assert history.transcript("f") == "short"


def test_what_has_expired_makes_room(clock: list[float]) -> None:
    history = AudioHistory(max_bytes=2 * said("x").num_bytes)
    history.remember("a", said("x", lives_s=10))
    clock[0] = NOW + 20
    history.remember("b", said("y", lives_s=80))
    history.remember("c", said("z", lives_s=80))
    assert (history.transcript("b"), history.transcript("c")) == ("y", "z")
