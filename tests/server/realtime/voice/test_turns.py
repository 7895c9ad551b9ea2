"""The turn machine over any probabilities: starts and stops alternate, and time never goes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.server.realtime.voice.listening import FRAME_MS
from omnistage.server.realtime.voice.turns import (
    TurnChange,
    TurnDoubtful,
    TurnMachine,
    TurnPaused,
    TurnResumed,
    TurnSettings,
    TurnStarted,
    TurnStopped,
)


def changes_of(
    probabilities: list[float], chosen: TurnSettings | None = None, now_ms: float = 0
) -> list[TurnChange]:
    machine = TurnMachine(chosen or TurnSettings(), now_ms)
    changes = [machine.update(one, FRAME_MS) for one in probabilities]
    return [one for one in changes if one is not None]


def run(
    probabilities: list[float], chosen: TurnSettings | None = None, now_ms: float = 0
) -> list[TurnStarted | TurnStopped]:
    """Starts and stops, without pauses."""
    changes = changes_of(probabilities, chosen, now_ms)
    return [one for one in changes if isinstance(one, TurnStarted | TurnStopped)]


def frames(ms: float, probability: float) -> list[float]:
    return [probability] * round(ms / FRAME_MS)


def test_a_turn_has_its_padding_and_its_silence() -> None:
    track = frames(1024, 0.0) + frames(640, 0.9) + frames(1024, 0.0)
    assert run(track) == [TurnStarted(1024 - 300), TurnStopped(1024 + 640 + 512, 1024 + 640 + 128)]


def test_a_pause_is_told_and_taken_back() -> None:
    """What is silence for 100 ms is a pause, 4 frames here; the item of the turn ends there."""
    track = frames(320, 0.9) + frames(256, 0.0) + frames(64, 0.9) + frames(512, 0.0)
    assert changes_of(track) == [
        TurnStarted(0),
        TurnPaused(320 + 128),
        TurnResumed(),
        TurnPaused(640 + 128),
        TurnStopped(640 + 512, 640 + 128),
    ]


def test_a_pause_is_told_once_it_outlasts_those_before_it() -> None:
    """Syllables with silence between them; the item ends 100 ms behind the last all the same."""
    syllables = 5 * (frames(96, 0.9) + frames(160, 0.0))
    track = syllables + frames(96, 0.9) + frames(512, 0.0)
    last_ms = 5 * 256 + 96
    assert changes_of(track) == [
        TurnStarted(0),
        TurnPaused(96 + 128),
        TurnResumed(),
        TurnPaused(last_ms + 128),
        TurnStopped(last_ms + 512, last_ms + 128),
    ]


def test_a_pause_is_measured_against_those_of_its_own_turn() -> None:
    turn = frames(96, 0.9) + frames(256, 0.0) + frames(96, 0.9) + frames(512, 0.0)
    kinds = [type(one) for one in changes_of(2 * turn)]
    assert kinds == 2 * [TurnStarted, TurnPaused, TurnResumed, TurnPaused, TurnStopped]


@pytest.mark.parametrize(("silence_ms", "end_ms"), [(0, 32), (96, 96), (128, 128), (129, 160)])
def test_a_short_silence_ends_a_turn_without_a_pause(silence_ms: int, end_ms: float) -> None:
    changes = changes_of(frames(320, 0.9) + frames(512, 0.0), TurnSettings(silence_ms=silence_ms))
    paused = [one for one in changes if isinstance(one, TurnPaused)]
    assert len(paused) == (silence_ms > 128)
    assert changes[-1] == TurnStopped(320 + end_ms, 320 + min(end_ms, 128))


def test_padding_ends_where_audio_begins() -> None:
    assert run(frames(320, 0.9), now_ms=5000) == [TurnStarted(5000)]


def test_padding_does_not_reach_into_the_turn_before() -> None:
    track = frames(320, 0.9) + frames(512, 0.0) + frames(96, 0.9)
    _, stopped, again = run(track)
    assert isinstance(stopped, TurnStopped)
    assert again == TurnStarted(stopped.at_ms)


@pytest.mark.parametrize(("num_frames", "starts"), [(1, 0), (2, 0), (3, 1)])
def test_a_click_is_no_turn(num_frames: int, starts: int) -> None:
    track = [0.0] * 5 + [1.0] * num_frames + [0.0] * 5
    assert len(run(track)) == starts


@pytest.mark.parametrize(("between", "ends"), [(0.36, False), (0.34, True)])
def test_a_turn_ends_only_well_below_where_it_began(between: float, ends: bool) -> None:
    track = frames(320, 0.5) + frames(640, between)
    assert (len(run(track)) == 2) == ends


def test_a_threshold_of_zero_ends_at_nearly_nothing() -> None:
    chosen = TurnSettings(threshold=0.0)
    track = frames(320, 0.0)
    started = [type(one) for one in run(track, chosen)]
    assert started == [TurnStarted]  # and at once ends, and begins
    assert len(run(frames(1280, 0.0), chosen)) > 1


def test_changed_settings_hold_for_the_turn_that_goes_on() -> None:
    machine = TurnMachine(TurnSettings())
    for _ in range(3):
        machine.update(1.0, FRAME_MS)
    machine.settings = TurnSettings(silence_ms=96)
    changes = [machine.update(0.0, FRAME_MS) for _ in range(3)]
    assert changes[:2] == [None, None]
    assert isinstance(changes[2], TurnStopped)


tracks = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.34, 0.35, 0.5, 1.0])), max_size=200
)
choices = st.builds(
    TurnSettings,
    threshold=st.floats(0, 1),
    prefix_padding_ms=st.integers(0, 2000),
    silence_ms=st.integers(0, 2000),
)


# What may follow what; None: the beginning.
FOLLOWING: dict[type[TurnChange] | None, tuple[type[TurnChange], ...]] = {
    None: (TurnStarted,),
    TurnStarted: (TurnPaused, TurnStopped),
    TurnPaused: (TurnResumed, TurnStopped),
    TurnResumed: (TurnPaused, TurnStopped),
    TurnStopped: (TurnStarted,),
}


def check(changes: list[TurnChange], begin_ms: float, end_ms: float) -> None:
    at_ms = begin_ms
    before: TurnChange | None = None
    for change in changes:
        assert isinstance(change, FOLLOWING[None if before is None else type(before)])
        if not isinstance(change, TurnResumed | TurnDoubtful):
            assert at_ms <= change.at_ms <= end_ms
            at_ms = change.at_ms
        if isinstance(change, TurnStopped):
            assert begin_ms <= change.end_ms <= change.at_ms
            if isinstance(before, TurnPaused):
                assert change.end_ms == before.at_ms
        before = change


@given(tracks, choices, st.floats(0, 1e6))
@settings(max_examples=300)
def test_starts_and_stops_alternate_within_the_audio(
    track: list[float], chosen: TurnSettings, now_ms: float
) -> None:
    check(changes_of(track, chosen, now_ms), now_ms, now_ms + len(track) * FRAME_MS + 1e-6)


def test_ten_thousand_random_tracks() -> None:
    drawn = random.Random(0)
    num_turns = 0
    for _ in range(10_000):
        likely, track = drawn.random(), []
        for _ in range(60):
            likely = min(1.0, max(0.0, likely + drawn.uniform(-0.4, 0.4)))
            track.append(likely)
        chosen = TurnSettings(drawn.random(), drawn.randrange(600), drawn.randrange(600))
        changes = changes_of(track, chosen)
        num_turns += sum(isinstance(one, TurnStopped) for one in changes)
        check(changes, 0, 60 * FRAME_MS + 1e-6)
    assert num_turns > 5000
