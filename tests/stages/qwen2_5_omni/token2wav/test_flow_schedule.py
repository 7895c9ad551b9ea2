"""Where an answer is cut, and what a stream does next."""

import numpy as np
import pytest
import torch

from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Ramp, Schedule
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_plan import (
    BlockPlan,
    Known,
    NextEvaluation,
    NextSound,
    StreamProgress,
)


def test_a_ramp_grows_to_its_last_size() -> None:
    ramp = Ramp((2, 3, 6))
    assert [ramp.end_after(blocks) for blocks in range(19)] == (
        [2, 2, 5, 5, 5] + [11] * 6 + [17] * 6 + [23] * 2
    )


def test_a_window_without_sound_is_none() -> None:
    schedule = Schedule.streamed((1,), ahead=1, context=50)
    assert schedule.window_after(0, block_frames=24) == 3
    assert schedule.window_after(3, block_frames=24) == 4


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.streamed((2, 3, 6), ahead=1, context=20), [48, 112, 184]),
        (Schedule.streamed((1,), ahead=1, context=50), [72, 96, 120, 124]),
        (Schedule.streamed((4, 1, 3), ahead=1, context=12), [48, 96]),
        (Schedule.whole(12, 34), [288, 356]),
    ],
    ids=str,
)
def test_windows_are_as_long_as_it_says(schedule: Schedule, expected: list[int]) -> None:
    plan, found, now = BlockPlan(schedule, 24, 2), set(), progress(0, 24 * 99)
    while isinstance(sound := plan.next(now, known(24 * 99)), NextSound):
        found.add(sound.end - sound.start)
        now = progress(0, 24 * 99, sound.num_windows, sound.ready)
    assert schedule.window_lengths(24) == found == set(expected)


PLAN = BlockPlan(Schedule.streamed((2, 3), ahead=1, context=20), block_frames=24, repeats=2)


def known(num_codes: int, is_all: bool = False) -> Known:
    return Known(np.zeros(num_codes, np.int64), is_all)


def progress(
    num_solved: int, num_frames: int, num_windows: int = 0, num_sent: int = 0
) -> StreamProgress:
    mel = torch.zeros(num_frames, 80)
    return StreamProgress(
        np.zeros(0, np.int64), mel, mel, num_solved, None, 0, num_windows, num_sent
    )


@pytest.mark.parametrize(
    ("num_solved", "num_codes", "is_all", "expected"),
    [
        (0, 35, False, None),
        (0, 36, False, NextEvaluation(0, 2, 3)),
        (0, 100, False, NextEvaluation(0, 2, 3)),
        (0, 37, True, NextEvaluation(0, 2, 3)),
        (0, 36, True, NextEvaluation(0, 3, 3)),
        (0, 1, True, NextEvaluation(0, 1, 1)),
        (0, 0, True, None),
        (2, 71, False, None),
        (2, 72, False, NextEvaluation(2, 5, 6)),
        (2, 61, True, NextEvaluation(2, 6, 6)),
    ],
)
def test_a_chunk_waits_for_the_blocks_ahead_or_for_the_end(
    num_solved: int, num_codes: int, is_all: bool, expected: NextEvaluation | None
) -> None:
    sent = progress(num_solved, num_solved * 24, num_solved, max(num_solved * 24 - 20, 0))
    assert PLAN.next(sent, known(num_codes, is_all)) == expected


@pytest.mark.parametrize(
    ("at", "coming", "expected"),
    [
        (progress(2, 48), known(36), NextSound(0, 48, 28, 2)),
        (progress(2, 48), known(24, True), NextSound(0, 48, 28, 2)),
        (progress(2, 48, 2, 28), known(24, True), NextSound(8, 48, 48, 5)),
        (progress(3, 60), known(30, True), NextSound(0, 48, 28, 2)),
        (progress(3, 60, 2, 28), known(30, True), NextSound(8, 60, 60, 5)),
        (progress(3, 60, 5, 60), known(30, True), None),
        (progress(2, 48, 2, 28), known(36), None),
    ],
    ids=["a window", "at the end", "the rest", "more frames", "its rest", "nothing", "waiting"],
)
def test_windows_of_the_vocoder_are_at_the_same_places_whatever_has_come(
    at: StreamProgress, coming: Known, expected: NextSound | None
) -> None:
    assert PLAN.next(at, coming) == expected
