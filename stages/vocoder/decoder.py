"""The interface of a family's streaming decoder."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.messages.to_gateway import NumChannels
from omnistage.stages.messages.to_stage import Request

Frames = npt.NDArray[Any]
"""Frames of one stream [n, …], of the decoder's own shape and dtype."""
Samples = npt.NDArray[np.int16]
"""int16 [n] of mono, [n, 2] of stereo."""

UNASKED = Request(None, [])
"""Of a stream that is nobody's."""

State = TypeVar("State")

SAMPLE_MAX = 32767


@dataclass(frozen=True, slots=True)
class StreamPiece(Generic[State]):
    """The part of one stream in a batch: its place, and the frames that come next.

    `is_last`: none follow. A decoder that waits for later frames then decodes what it kept; if it
    `keeps_frames`, such a piece may be without frames.
    """

    state: State
    frames: Frames
    is_last: bool = False


class Decoded(NamedTuple):
    """A batch's samples on the device: float in -1..1, [B, n] of mono or [B, n, 2] of stereo.

    `heard`: which samples of each row are sound. `unfinished`: rows whose piece needs another
    step, in which other streams may share: a solver that calls its model many times a piece.
    """

    pcm: torch.Tensor
    heard: Sequence[slice]
    unfinished: Collection[int] = ()


class Decoder(Protocol[State]):
    """A model with the state of its streams; it knows nothing of requests, chunks and deadlines.

    Only one thread calls it. `decode` leaves every stream where it is until `advance`: a batch
    that fails, wherever it does, can be decoded again.
    """

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def sample_rate_hz(self) -> int:
        """Returns the sample rate of its output."""

    @property
    def num_channels(self) -> NumChannels:
        """Returns the channels of its output."""

    @property
    def samples_per_frame(self) -> int:
        """How many samples of each channel a frame stands for."""

    @property
    def keeps_frames(self) -> bool:
        """Returns whether a stream's end gives samples of its own: it waits for later frames."""

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""

    def blank(self, num_frames: int) -> Frames:
        """So many frames that it can decode, or none at all."""

    def check(self, frames: Frames) -> None:
        """Raises ValueError for frames that it cannot decode."""

    def open(self, request: Request) -> State:
        """Begin a stream of what was asked for; the caller checks `num_free`."""

    def close(self, state: State) -> None:
        """End a stream and free what it holds."""

    def group_of(self, piece: StreamPiece[State]) -> Hashable:
        """Pieces of one group may share a batch."""

    def decode(self, pieces: Sequence[StreamPiece[State]]) -> Decoded:
        """Take one step with pieces of one group."""

    def advance(self, piece: StreamPiece[State]) -> None:
        """The stream goes on from what the last step has written."""

    def capture(self) -> None:
        """Record what a GPU should not have to be told step by step; only called with one."""


def to_int16(pcm: torch.Tensor) -> torch.Tensor:
    """Samples in -1..1, what is beyond clipped, as int16."""
    return (pcm.clamp(-1, 1) * SAMPLE_MAX).round().to(torch.int16)
