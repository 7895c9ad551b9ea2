"""Two streaming decoders that are no family's: what every family shares must serve both.

Each notes its batches, the lengths of their pieces, in `batches`, and raises its `error` for a
batch with a `GUILTY` frame once all is written.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.messages.to_gateway import NumChannels
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder.code_decoder import Codec, CodeDecoder
from omnistage.stages.vocoder.decoder import Decoded, Frames, Samples, StreamPiece, to_int16
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

GUILTY = 99
SCALE = 1e-4


class RunningSum(CodeDecoder):
    """Stereo at 8 kHz, three samples a frame: the sum of all codes so far, and its negative.

    The first sample of a stream is held back, so that all come one late.
    """

    def __init__(self, num_slots: int) -> None:
        codec = Codec(2, GUILTY + 1, 3, 8000, num_channels=2, num_held_back=1)
        layout = StateLayout()
        self._total = layout.reserve(1)
        super().__init__(codec, layout, num_slots, torch.zeros(1, dtype=torch.float64))
        self.batches: list[list[int]] = []
        self.error: Exception = RuntimeError("injected")

    def forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        total = self._total.of(batch.rows)
        sums = codes.sum(1).cumsum(1) + total
        total.copy_(sums[:, -1:])
        left = SCALE * sums.repeat_interleave(3, dim=1)
        return torch.stack([left, -left], dim=2).float()

    def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
        self.batches.append([len(piece.frames) for piece in pieces])
        decoded = super().decode(pieces)
        if any((piece.frames == GUILTY).any() for piece in pieces):
            raise self.error
        return decoded

    @staticmethod
    def whole(codes: npt.NDArray[np.int32]) -> Samples:
        """The samples of an answer."""
        left = SCALE * codes.astype(float).sum(1).cumsum().repeat(3)[1:]
        return to_int16(torch.from_numpy(np.stack([left, -left], 1)).float()).numpy()


@dataclass(slots=True)
class Window:
    """The frame that waits for the next one, and how often the next piece was solved."""

    kept: list[float] = field(default_factory=list)
    num_solved: int = 0


class Pairs:
    """Mono at 16 kHz, two samples a frame: the mean of each frame and the one after it.

    Frames are float32 [n, 1], streams of any length share a batch, a piece takes two steps, and
    the last frame is heard at the stream's end.
    """

    device = torch.device("cpu")
    sample_rate_hz = 16_000
    samples_per_frame = 2
    keeps_frames = True

    def __init__(self, num_slots: int) -> None:
        self.num_free = num_slots
        self.requests: list[Request] = []
        self.batches: list[list[int]] = []
        self.error: Exception = RuntimeError("injected")

    @property
    def num_channels(self) -> NumChannels:
        return 1

    def blank(self, num_frames: int) -> Frames:
        return np.zeros((num_frames, 1), np.float32)

    def check(self, frames: Frames) -> None:
        if frames.ndim != 2 or frames.dtype != np.float32:
            raise ValueError(f"no frames: {frames.dtype} {frames.shape}")

    def open(self, request: Request) -> Window:
        self.num_free -= 1
        self.requests.append(request)
        return Window()

    def close(self, state: Window) -> None:
        self.num_free += 1

    def group_of(self, piece: StreamPiece[Window]) -> Hashable:
        return "all"

    def decode(self, pieces: Sequence[StreamPiece[Window]]) -> Decoded:
        self.batches.append([len(piece.frames) for piece in pieces])
        if any((piece.frames == GUILTY).any() for piece in pieces):
            raise self.error
        unfinished = {row for row, piece in enumerate(pieces) if not piece.state.num_solved}
        sounds = [
            np.zeros(0) if row in unfinished else self._sound(piece)
            for row, piece in enumerate(pieces)
        ]
        pcm = torch.zeros(len(pieces), max(map(len, sounds)))
        for row, sound in enumerate(sounds):
            pcm[row, : len(sound)] = torch.from_numpy(sound)
        return Decoded(pcm, [slice(0, len(sound)) for sound in sounds], unfinished)

    def _sound(self, piece: StreamPiece[Window]) -> npt.NDArray[np.float64]:
        frames = np.array([*piece.state.kept, *piece.frames[:, 0]], float)
        if piece.is_last:
            frames = np.append(frames, frames[-1])
        sound: npt.NDArray[np.float64] = SCALE * ((frames[:-1] + frames[1:]) / 2).repeat(2)
        return sound

    def advance(self, piece: StreamPiece[Window]) -> None:
        state = piece.state
        state.num_solved = (state.num_solved + 1) % 2
        if not state.num_solved and len(piece.frames):
            state.kept = [float(piece.frames[-1, 0])]

    def capture(self) -> None:
        raise AssertionError("there is no GPU")

    @staticmethod
    def whole(frames: npt.NDArray[np.float32]) -> Samples:
        """The samples of an answer."""
        padded = np.append(frames[:, 0].astype(float), frames[-1, 0])
        sound = SCALE * ((padded[:-1] + padded[1:]) / 2).repeat(2)
        return to_int16(torch.from_numpy(sound).float()).numpy()


def codes_of(num_frames: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Frames for a RunningSum."""
    return np.random.default_rng(seed).integers(0, GUILTY, (num_frames, 2), dtype=np.int32)


def floats_of(num_frames: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Frames for Pairs."""
    return np.random.default_rng(seed).normal(0, 100, (num_frames, 1)).astype(np.float32)
