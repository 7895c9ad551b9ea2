"""Holds streams of a vocoder's engine, what was pushed to them, and what is decoded of them."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

import numpy as np

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder.decoder import Frames, Samples, State, StreamPiece


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one step.

    Longer chunks are decoded in pieces, so that memory stays bounded. Beyond so many frames in a
    batch a GPU only makes everybody wait longer. `batch_streams`: requests in a batch; with one no
    sample depends on who else is served, since kernels and their roundings go by a batch's size.
    """

    piece_frames: int = 100
    batch_frames: int = 400
    batch_streams: int | None = None


class DecodedAudio(NamedTuple):
    """The answer to one push."""

    request_id: str
    pcm: Samples
    frames: Frames
    last: bool


class DecodeFailed(NamedTuple):
    """A request that could not be decoded even alone; it is forgotten."""

    request_id: str
    is_out_of_memory: bool = False


class Fault(NamedTuple):
    """Why a batch could not be decoded; the exception itself would hold memory."""

    is_out_of_memory: bool


@dataclass(slots=True)
class Pushed:
    """One push on its way through the decoder, or a stream's lead, which gets no answer."""

    frames: Frames
    last: bool
    arrived_s: float
    is_lead: bool = False
    num_decoded: int = 0
    has_begun: bool = False
    pcm: list[Samples] = field(default_factory=list)

    def joined(self, num_channels: int) -> Samples:
        """Returns all samples that it became."""
        silence = np.zeros(0 if num_channels == 1 else (0, num_channels), np.int16)
        return np.concatenate([silence, *self.pcm])


@dataclass(slots=True)
class Stream(Generic[State]):
    """One open request.

    `num_unheard`: samples of each channel that are still to be dropped; those of its lead.
    `primed`: its lead, as long as that is all that it has decoded.
    """

    request_id: str
    request: Request
    waiting: deque[Pushed] = field(default_factory=deque)
    has_all: bool = False
    is_held: bool = False
    state: State | None = None
    num_unheard: int = 0
    primed: Pushed | None = None

    @property
    def has_pushed(self) -> bool:
        """Returns whether it has more to decode than its lead."""
        return bool(self.waiting) and not self.waiting[-1].is_lead

    def put_lead(self, lead: Frames, samples_per_frame: int) -> None:
        """Puts frames before all others, whose samples nobody hears."""
        self.waiting.appendleft(Pushed(lead, False, time.monotonic(), is_lead=True))
        self.num_unheard = len(lead) * samples_per_frame

    def heard(self, samples: Samples) -> Samples:
        """Returns the next samples that are not to be dropped."""
        num_dropped = min(self.num_unheard, len(samples))
        self.num_unheard -= num_dropped
        return samples[num_dropped:]


@dataclass(slots=True)
class Turn(Generic[State]):
    """A stream's possible part of the next step."""

    stream: Stream[State]
    pushed: Pushed
    piece: StreamPiece[State]
    deadline_s: float


def deadline_of(turn: Turn[State]) -> float:
    """When its samples are due."""
    return turn.deadline_s


def bounded(turns: list[Turn[State]], limits: Limits) -> list[Turn[State]]:
    """Returns the first of them, and as many more as one batch may have."""
    num_frames = 0
    turns = turns[: limits.batch_streams]
    for count, turn in enumerate(turns):
        num_frames += len(turn.piece.frames)
        if count and num_frames > limits.batch_frames:
            return turns[:count]
    return turns
