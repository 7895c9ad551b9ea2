"""The clocks of two nodes, reckoned from beats and used for the waits of chunks."""

import time
from pathlib import Path

import pytest
from support.channels.nodes import chunk
from support.channels.notes import NOTES

from omnistage.connectors.ring import CLOCK_AHEAD_NS, WORD
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp.clocks import reckon

MS = 1_000_000


@pytest.mark.parametrize("ahead_ms", [-5000, 0, 3, 10**9])
@pytest.mark.parametrize(("there_ms", "back_ms"), [(1, 1), (0, 2), (2, 0)])
def test_a_clock_is_known_to_half_of_the_way(ahead_ms: int, there_ms: int, back_ms: int) -> None:
    sent, held_ms = 10**13, 400
    heard = sent + (there_ms + ahead_ms) * MS
    answered = heard + held_ms * MS
    now = sent + (there_ms + held_ms + back_ms) * MS
    way_ns, ahead_ns, at_ns = reckon(sent, heard, answered, now)
    assert at_ns == now
    assert way_ns == (there_ms + back_ms) * MS
    assert abs(ahead_ns - ahead_ms * MS) <= way_ns // 2


def test_a_clock_that_drifts_is_reckoned_again() -> None:
    """For an hour by beats each 0.5 s, of which the first was by far the fastest."""
    drift, hour_ns, beat_ns = 40e-6, 3600 * 10**9, 500 * MS
    best = reckon(0, MS // 20, MS // 20, MS // 10)
    for now in range(beat_ns, hour_ns, beat_ns):
        there = now + round(drift * now)  # heard and answered at once, half way
        new = reckon(now - MS, there - MS // 2, there - MS // 2, now)
        best = new if new.is_surer(best) else best
        assert abs(best.ahead_ns - drift * now) < 2 * MS


def test_a_slower_beat_soon_after_is_no_surer() -> None:
    first = reckon(0, MS, MS, 2 * MS)
    assert not reckon(500 * MS, 502 * MS, 502 * MS, 504 * MS).is_surer(first)
    assert reckon(500 * MS, 500 * MS, 500 * MS, 501 * MS).is_surer(first)


@pytest.mark.parametrize(
    ("ahead_s", "least_ms", "most_ms"), [(-1000, 20, 60_000), (1000, 20, 60_000), (None, 0, 0)]
)
def test_waits_are_counted_by_both_clocks(
    ahead_s: int | None,
    least_ms: int,
    most_ms: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver whose clock is ahead or behind; one that nobody reckoned with counts no wait."""
    connector = ShmConnector(tmp_path)
    connector.create("x")
    sender, receiver = connector.sender("x"), connector.receiver("x", NOTES)
    ahead_ns = (-1000 if ahead_s is None else ahead_s) * 10**9
    sender.send(chunk())
    time.sleep(0.02)

    class Ahead:
        """The clock of the receiver's node."""

        @staticmethod
        def monotonic_ns() -> int:
            return time.monotonic_ns() + ahead_ns

    monkeypatch.setattr("omnistage.connectors.ring.time", Ahead)
    if ahead_s is not None:
        connector.ring("x")._words[CLOCK_AHEAD_NS] = ahead_ns % WORD
    assert receiver.receive() is not None
    assert least_ms * MS <= connector.usage("x").wait_ns <= most_ms * MS
    sender.close()
    receiver.close()
