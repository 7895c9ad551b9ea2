"""A decoder of frames that carries state in slots and replays graphs of small batches."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import torch

from omnistage.stages.messages.to_gateway import NumChannels
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder.decoder import UNASKED, Decoded, Frames, StreamPiece
from omnistage.stages.vocoder.graphs import DecodeGraphs
from omnistage.stages.vocoder.slots import Slot, Slots
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

GRAPH_FRAMES = (1, 2, 4, 8, 16, 25)  # chunk lengths and batches that get a CUDA graph, as long as
GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 64)  # launching the kernels would take longer than running them
MAX_GRAPH_FRAMES = 400


class FrameForm(Protocol):
    """The form of a decoder's frames, and the samples that are made of them.

    `num_held_back`: samples of each channel by which the sound comes late, because the model looks
    ahead. A stream's first chunk has so many less, and its end is never heard.
    """

    @property
    def samples_per_frame(self) -> int:
        """Returns the samples of each channel."""

    @property
    def sample_rate_hz(self) -> int:
        """Returns the sample rate of its output."""

    @property
    def num_channels(self) -> NumChannels:
        """Returns the channels of its output."""

    @property
    def num_held_back(self) -> int:
        """Returns the samples of each channel that come late."""

    def blank(self, num_frames: int) -> Frames:
        """So many frames of zeros."""

    def check(self, frames: Frames) -> None:
        """Raises ValueError for frames that cannot be decoded."""

    def batch(self, frames: Sequence[Frames]) -> torch.Tensor:
        """Streams' frames, as many of each, as the model takes them: [B, …, n]."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Frames of codes, int32 [n, codebooks]; a batch is int64 [B, codebooks, n]."""

    num_codebooks: int
    codebook_size: int
    samples_per_frame: int
    sample_rate_hz: int
    num_channels: NumChannels = 1
    num_held_back: int = 0

    def blank(self, num_frames: int) -> Frames:
        """Frames of code 0."""
        return np.zeros((num_frames, self.num_codebooks), np.int32)

    def check(self, frames: Frames) -> None:
        """Raises ValueError unless every code is in its codebook."""
        size = self.codebook_size
        if frames.ndim != 2 or frames.shape[1] != self.num_codebooks:
            raise ValueError(f"codes of shape {frames.shape}, expected [n, {self.num_codebooks}]")
        if frames.size and (frames.min() < 0 or frames.max() >= size):
            raise ValueError(f"a code is not in 0..{size - 1}")

    def batch(self, frames: Sequence[Frames]) -> torch.Tensor:
        """Streams' frames as int64 [B, codebooks, n]."""
        return torch.from_numpy(np.stack(frames).transpose(0, 2, 1)).long()


@dataclass(frozen=True, slots=True)
class Latents:
    """Frames of floats [n, *shape]; a batch is [B, *shape, n], of float32."""

    shape: tuple[int, ...]
    samples_per_frame: int
    sample_rate_hz: int
    num_channels: NumChannels = 1
    num_held_back: int = 0

    def blank(self, num_frames: int) -> Frames:
        """Frames of zeros."""
        return np.zeros((num_frames, *self.shape), np.float32)

    def check(self, frames: Frames) -> None:
        """Raises ValueError for another shape, and for what is not finite."""
        if frames.shape[1:] != self.shape or not frames.ndim:
            expected = ", ".join(map(str, self.shape))
            raise ValueError(f"latents of shape {frames.shape}, expected [n, {expected}]")
        if not np.isfinite(frames).all():
            raise ValueError("a latent is not finite")

    def batch(self, frames: Sequence[Frames]) -> torch.Tensor:
        """Streams' frames as float32 [B, *shape, n]."""
        return torch.from_numpy(np.moveaxis(np.stack(frames), 1, -1).astype(np.float32))


class CodeDecoder(ABC):
    """A `Decoder` whose frames are a codec's, or latents; a family's model is its `forward`.

    The family makes its layers first: each reserves its region of the layout.
    """

    keeps_frames = False

    def __init__(
        self, codec: FrameForm, layout: StateLayout, num_slots: int, weights: torch.Tensor
    ) -> None:
        """State is of the weights' dtype, on their device."""
        self.codec = codec
        self.device = weights.device
        self.slots = Slots(layout, num_slots, weights)
        self._graphs = DecodeGraphs(self._decode, self.slots.spare)

    @abstractmethod
    def forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """The samples of frames [B, …, n], and the rows of `batch` written anew.

        Float32 [B, n * samples_per_frame], stereo [..., 2]. Shapes may depend on those of the
        arguments only, and nothing may wait for the device.
        """

    @property
    def sample_rate_hz(self) -> int:
        """The codec's."""
        return self.codec.sample_rate_hz

    @property
    def num_channels(self) -> NumChannels:
        """The codec's."""
        return self.codec.num_channels

    @property
    def samples_per_frame(self) -> int:
        """The codec's."""
        return self.codec.samples_per_frame

    # Streams

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""
        return self.slots.num_free

    def open(self, request: Request = UNASKED) -> Slot:
        """A new stream, the same for every request; the caller checks `num_free`."""
        return self.slots.open()

    def close(self, state: Slot) -> None:
        """Free the slot of a stream."""
        self.slots.close(state)

    # Frames

    def blank(self, num_frames: int) -> Frames:
        """Frames of zeros."""
        return self.codec.blank(num_frames)

    def check(self, frames: Frames) -> None:
        """Raises ValueError for frames that it cannot decode."""
        self.codec.check(frames)

    # Decoding

    def group_of(self, piece: StreamPiece[Slot]) -> Hashable:
        """Equal lengths share a batch."""
        return len(piece.frames)

    @torch.inference_mode()
    def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
        """Compute the next frames of each stream.

        The first chunk of a stream has `num_held_back` samples less, the others come late by as
        much, and a whole utterance ends that much early.
        """
        slots = [piece.state for piece in pieces]
        codes = self.codec.batch([piece.frames for piece in pieces])
        rows = torch.tensor([(slot.row, slot.next_row) for slot in slots])
        pcm = self._graphs.decode(rows, codes)
        if pcm is None:
            pcm = self._decode(rows.to(self.device), codes.to(self.device))
        held_back = self.codec.num_held_back
        return Decoded(pcm, [slice(0 if slot.num_frames else held_back, None) for slot in slots])

    def advance(self, piece: StreamPiece[Slot]) -> None:
        """The stream goes on from what the last decode has written."""
        piece.state.advance(len(piece.frames))

    def capture(self) -> None:
        """Record graphs; the largest first: its memory then serves the others."""
        for num_frames, num_rows in product(reversed(GRAPH_FRAMES), reversed(GRAPH_ROWS)):
            if num_rows * num_frames <= MAX_GRAPH_FRAMES:
                self.record(num_rows, num_frames)

    @torch.inference_mode()
    def record(self, num_rows: int, num_frames: int) -> None:
        """Keep a CUDA graph for batches of this shape."""
        blank = self.codec.batch([self.codec.blank(num_frames)] * num_rows)
        self._graphs.record(blank.to(self.device))

    def _decode(self, rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        source, target = rows.unbind(1)
        batch = self.slots.load(source)
        pcm = self.forward(codes, batch)
        self.slots.store(target, batch, codes.shape[-1])
        return pcm
