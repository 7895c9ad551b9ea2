"""Plans the next step of a stream of token2wav: an evaluation, a vocoder window, or nothing."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.qwen2_5_omni.token2wav.flow import Solution
from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Schedule

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a stream is; each step makes a new one.

    `codes`: of all finished pieces. `num_solved`: blocks whose mel frames are final; `carried`:
    what entered the evaluations of the last of them. `solution`: of the chunk that is being
    solved. `mel`: the last final frames, from frame `mel_start` on. `num_windows`: blocks whose
    window was decoded; `num_sent`: frames whose samples have left.
    """

    codes: Codes
    mel: torch.Tensor
    carried: torch.Tensor
    num_solved: int = 0
    solution: Solution | None = None
    mel_start: int = 0
    num_windows: int = 0
    num_sent: int = 0

    @property
    def mel_end(self) -> int:
        """The first frame that is not there."""
        return self.mel_start + len(self.mel)

    def after(self, sound: "NextSound", context: int) -> "StreamProgress":
        """Return the progress once a window is decoded; frames that none will need are dropped."""
        start = max(sound.ready - context, 0)
        return replace(
            self,
            mel=self.mel[start - self.mel_start :].clone(),
            mel_start=start,
            num_windows=sound.num_windows,
            num_sent=sound.ready,
        )


class Known(NamedTuple):
    """The part of an answer that has come, and whether that is all of it."""

    codes: Codes
    is_all: bool


class NextEvaluation(NamedTuple):
    """An evaluation is next, of blocks `first` to `end`; up to `kept` they become final."""

    first: int
    kept: int
    end: int


class NextSound(NamedTuple):
    """The vocoder is next, with frames `start` to `end`; samples leave up to frame `ready`."""

    start: int
    end: int
    ready: int
    num_windows: int


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A schedule of blocks with so many frames, of which each code has `repeats`."""

    schedule: Schedule
    block_frames: int
    repeats: int

    def next(self, progress: StreamProgress, known: Known) -> NextEvaluation | NextSound | None:
        """Sound goes first: somebody waits for it."""
        return self._sound(progress, known) or self._chunk(progress, known)

    def _sound(self, progress: StreamProgress, known: Known) -> NextSound | None:
        num_windows = self.schedule.window_after(progress.num_windows, self.block_frames)
        end, context = num_windows * self.block_frames, self.schedule.context
        start = max(progress.num_sent - context, 0)
        if progress.mel_end >= end:
            return NextSound(start, end, end - context, num_windows)
        total = self.repeats * len(known.codes)
        if known.is_all and progress.num_sent < total == progress.mel_end:
            return NextSound(start, total, total, num_windows)
        return None

    def _chunk(self, progress: StreamProgress, known: Known) -> NextEvaluation | None:
        """A chunk waits for all of the blocks ahead, unless the answer ends before.

        The blocks up to an answer's end are final as soon as they all are in one chunk.
        """
        first = progress.num_solved
        kept = self.schedule.chunks.end_after(first)
        end = kept + self.schedule.ahead
        num_frames = self.repeats * len(known.codes)
        total = -(-num_frames // self.block_frames)
        if progress.solution is not None:
            return NextEvaluation(first, kept, end)
        if known.is_all and total <= end:
            return NextEvaluation(first, total, total) if first < total else None
        if known.is_all or num_frames >= end * self.block_frames:
            return NextEvaluation(first, kept, end)
        return None
