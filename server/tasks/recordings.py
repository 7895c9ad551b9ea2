"""Audio and videos of answers, as Python's programs have them."""

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from omnistage.server.media.audio.track import Track
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.media.video.mp4 import encode
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.runtime.samples import SampleFormat

Samples = npt.NDArray[np.int16]
Frames = npt.NDArray[np.uint8]

FULL_SCALE = 32_768


@dataclass(frozen=True, slots=True, repr=False)
class Audio:
    """Sound: samples [n] of 16 bits, or [n, 2] in stereo."""

    samples: Samples
    sample_rate_hz: int

    @property
    def seconds(self) -> float:
        """Return its length in seconds."""
        return len(self.samples) / self.sample_rate_hz

    def to_float(self) -> npt.NDArray[np.float32]:
        """The samples from -1 to 1."""
        return self.samples.astype(np.float32) / np.float32(FULL_SCALE)

    def to_track(self) -> Track:
        """The samples as bytes, in turn of each channel."""
        num_channels = self.samples.shape[1] if self.samples.ndim > 1 else 1
        made = SampleFormat(self.sample_rate_hz, num_channels)
        return Track(made, self.samples.astype("<i2").tobytes())

    def to_wav(self) -> bytes:
        """A WAV file."""
        track = self.to_track()
        return wav_header(track.samples, len(track.pcm)) + track.pcm

    def save(self, path: str | Path) -> None:
        """Write a WAV file."""
        Path(path).write_bytes(self.to_wav())

    def __repr__(self) -> str:
        return f"Audio({self.seconds:.2f} s at {self.sample_rate_hz} Hz)"

    def _repr_html_(self) -> str:
        """A player, for notebooks."""
        return f'<audio controls src="data:audio/wav;base64,{as_base64(self.to_wav())}"></audio>'


@dataclass(frozen=True, slots=True, repr=False)
class Video:
    """A video: frames [n, height, width, 3] of uint8, so many a second, and its sound."""

    frames: Frames
    fps: float
    audio: Audio | None = None

    @property
    def seconds(self) -> float:
        """Return its length in seconds."""
        return len(self.frames) / self.fps

    def to_mp4(self) -> bytes:
        """An mp4, which loses some of the frames and of the sound; may take a while."""
        height, width = self.frames.shape[1:3]
        frames = [ImageOutput(one.tobytes(), width, height) for one in self.frames]
        return encode(frames, self.fps, None if self.audio is None else self.audio.to_track())

    def save(self, path: str | Path) -> None:
        """Write an mp4."""
        Path(path).write_bytes(self.to_mp4())

    def __repr__(self) -> str:
        num, height, width = self.frames.shape[:3]
        return f"Video({num} frames of {width}x{height} at {self.fps:g} per second)"

    def _repr_html_(self) -> str:
        """A player, for notebooks."""
        return f'<video controls src="data:video/mp4;base64,{as_base64(self.to_mp4())}"></video>'


def audio_of(pcm: bytes, made: SampleFormat) -> Audio:
    """Sound of s16le."""
    samples = np.frombuffer(pcm, "<i2").copy()  # a copy can be written to
    if made.num_channels > 1:
        samples = samples.reshape(-1, made.num_channels)
    return Audio(samples, made.rate_hz)


def pixels_of(output: ImageOutput) -> Frames:
    """A frame's pixels [height, width, 3]."""
    return np.frombuffer(output.pixels, np.uint8).reshape(output.height, output.width, -1)


def as_base64(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode("ascii")
