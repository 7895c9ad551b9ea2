"""Reads sounds: decodes the first of a file, mixes its channels to one, and resamples it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from omnistage.server.common.errors import invalid
from omnistage.server.media.audio.frames import audio_frame
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.containers import MAX_DURATION_S, decoded, first_stream, too_long
from omnistage.server.runtime.samples import SampleFormat

MAX_SAMPLES = MAX_DURATION_S * 48_000  # of all channels
BLOCK_SAMPLES = 1 << 17
MAX_RATE_HZ = 384_000  # of a file: a resampler's filter grows with its rate

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SoundLimits:
    """How long a sound may be, and the rates that its file may have, in seconds and Hz."""

    max_s: float = MAX_DURATION_S
    min_rate_hz: int = 1


ANY_SOUND = SoundLimits()


@dataclass(slots=True, eq=False)
class RawAudio:
    """Samples that are in no file: int16 [n] of one channel, at `rate_hz`.

    A caller in this process has it in place of the object of a chat's part `input_audio`.
    `remembers`: what was read of it last is kept with it, for a caller that has it read again.
    """

    samples: npt.NDArray[np.int16]
    rate_hz: int
    remembers: bool = False
    _read: tuple[int, list[Samples]] | None = None  # at its rate

    @property
    def num_bytes(self) -> int:
        """Return how much memory the samples take."""
        return self.samples.nbytes

    @property
    def seconds(self) -> float:
        """Return how long they play."""
        return len(self.samples) / self.rate_hz

    def read_at(self, rate_hz: int) -> list[Samples] | None:
        """Return what was read of it at a rate, if that is remembered."""
        return self._read[1] if self._read is not None and self._read[0] == rate_hz else None

    def remember(self, rate_hz: int, blocks: list[Samples]) -> None:
        """Keep all that was read of it at a rate."""
        self._read = rate_hz, blocks

    def frames(self) -> Iterator[av.AudioFrame]:
        """Yield the samples as FFmpeg resamples them."""
        for start in range(0, len(self.samples), BLOCK_SAMPLES):
            block = self.samples[start : start + BLOCK_SAMPLES]
            yield audio_frame(block.tobytes(), start, SampleFormat(self.rate_hz))


class SoundTrack:
    """The first sound of a file, or samples that are in none.

    `seconds`: how long it is as far as it has been read; `rate_hz`: of what was read of it.
    """

    def __init__(self, data: bytes | RawAudio, place: str, limits: SoundLimits = ANY_SOUND) -> None:
        self._data = data
        self._place = place
        self._limits = limits
        self.seconds = 0.0
        self.rate_hz = 0

    def samples(self, rate_hz: int) -> Iterator[Samples]:
        """Yield its samples in order, float32 [n] of one channel; may take a while.

        They are at `rate_hz`, or at the file's own rate if that is 0. Raises ApiError as soon as
        they are too many, or cannot be read.
        """
        data = self._data
        remembering = data if isinstance(data, RawAudio) and data.remembers else None
        known = None if remembering is None else remembering.read_at(rate_hz)
        if remembering is None or known is None:
            read: list[Samples] = []
            for block in self._checked(rate_hz):
                if remembering is not None:
                    read.append(block)
                yield block
            if remembering is not None:
                remembering.remember(rate_hz, read)
            return
        self.rate_hz, self.seconds = rate_hz or remembering.rate_hz, remembering.seconds
        yield from known

    def _checked(self, rate_hz: int) -> Iterator[Samples]:
        self.rate_hz = rate_hz
        num_samples = 0
        for block in _blocks(self._mono(rate_hz)):
            if not np.isfinite(block).all():
                raise invalid(self._place, "has samples that are no numbers")
            num_samples += len(block)
            yield block
        if not num_samples:
            raise invalid(self._place, "has no audio in it")

    def _mono(self, rate_hz: int) -> Iterator[Samples]:
        """Yield the samples of each frame."""
        data, place = self._data, self._place
        if isinstance(data, RawAudio):
            yield from self._resampled(data.frames(), rate_hz)
            return
        check_blocks(data, place)
        with first_stream(data, place, "audio") as (container, stream):
            frames = (frame for packet in container.demux(stream) for frame in decoded(packet))
            yield from self._resampled(frames, rate_hz)

    def _resampled(self, frames: Iterator[Any], rate_hz: int) -> Iterator[Samples]:
        mono = _Mono(rate_hz)
        num_samples = 0
        for frame in frames:
            num_samples += frame.samples * frame.layout.nb_channels
            self._count(frame)
            if num_samples > MAX_SAMPLES:
                raise too_long(self._place, f"{MAX_SAMPLES} samples of all channels")
            yield from mono.add(frame)
        yield from mono.flush()

    def _count(self, frame: Any) -> None:
        rate, limits = frame.sample_rate, self._limits
        if not limits.min_rate_hz <= rate <= MAX_RATE_HZ:
            raise invalid(self._place, f"has a sample rate of {rate} Hz")
        self.seconds += frame.samples / rate
        self.rate_hz = self.rate_hz or rate
        if self.seconds > limits.max_s:
            raise too_long(self._place, f"{limits.max_s:g} s")


def _blocks(pieces: Iterator[Samples]) -> Iterator[Samples]:
    """Yield the same samples in fewer arrays: a frame has a thousand."""
    waiting: list[Samples] = []
    size = 0
    for samples in pieces:
        waiting.append(samples)
        size += len(samples)
        if size >= BLOCK_SAMPLES:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


class _Mono:
    """Frames as samples of one channel at one rate, also where a file changes its own."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._kind: object = None
        self._resampler: Any = None

    def add(self, frame: Any) -> Iterator[Samples]:
        """Yield what can be computed with the next frame."""
        kind = frame.format.name, frame.layout.name, frame.layout.nb_channels, frame.sample_rate
        if kind != self._kind:
            yield from self.flush()
            self._kind = kind
            self._rate_hz = self._rate_hz or frame.sample_rate
            self._resampler = av.AudioResampler(format="fltp", rate=self._rate_hz)
        frame.pts = None  # a gap in a file's times is no sound
        yield from self._resampled(frame)

    def flush(self) -> Iterator[Samples]:
        """Yield what the resampler holds."""
        if self._resampler is not None:
            yield from self._resampled(None)
            self._resampler = None

    def _resampled(self, frame: Any) -> Iterator[Samples]:
        for one in self._resampler.resample(frame):
            channels = one.to_ndarray()
            yield channels[0] if len(channels) == 1 else channels.mean(axis=0, dtype=np.float32)
