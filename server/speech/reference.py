"""A sound whose voice is to be spoken with: decoded once, as the stages take it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import av
import numpy as np
import numpy.typing as npt

from omnistage.server.errors import invalid
from omnistage.server.media.check import Medium, sound_frames
from omnistage.server.media.parts import checked_url

RATE_HZ = 24_000
MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 384_000  # of a file: a resampler's filter grows with its rate
MIN_S, MAX_S = 0.5, 60.0

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Samples of one speaker, mono at RATE_HZ, and what is said in them, if that is known.

    `key` names the samples: what stages compute of them is kept under it.
    """

    samples: Samples
    key: str
    text: str | None

    @classmethod
    def of(cls, samples: Samples, text: str | None) -> Self:
        """With its key."""
        return cls(samples, key_of(samples), text)


def key_of(samples: Samples) -> str:
    """The SHA-256 of the samples' bytes."""
    return hashlib.sha256(samples.tobytes()).hexdigest()


def medium_of(url: str, place: str) -> Medium:
    """What a URL names; raises ApiError for one that nobody here reads."""
    return Medium(place, "audio_url", {"url": checked_url(url, place)})


def samples_of(data: bytes, place: str) -> Samples:
    """The sound of a file, its channels mixed to one; may take a while. Raises ApiError."""
    parts = list(_resampled(sound_frames(data, place), place))
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if len(samples) < MIN_S * RATE_HZ:
        raise invalid(place, f"is shorter than {MIN_S:g} s")
    if not np.isfinite(samples).all():
        raise invalid(place, "has samples that are no numbers")
    if not samples.any():
        raise invalid(place, "is silent")
    return samples


def _resampled(frames: Iterator[Any], place: str) -> Iterator[Samples]:
    """Each frame's samples at RATE_HZ; refused as soon as they are too many, or of two kinds."""
    resampler = av.AudioResampler(format="fltp", rate=RATE_HZ)
    seconds = 0.0
    try:
        for frame in frames:
            if not MIN_RATE_HZ <= frame.sample_rate <= MAX_RATE_HZ:
                raise invalid(place, f"has a sample rate of {frame.sample_rate} Hz")
            seconds += frame.samples / frame.sample_rate
            if seconds > MAX_S:
                raise invalid(place, f"is longer than {MAX_S:g} s")
            yield from _mixed(resampler, frame)
        if seconds:
            yield from _mixed(resampler, None)
    except (ValueError, MemoryError, av.FFmpegError) as error:
        raise invalid(place, f"cannot be read: {error}") from error


def _mixed(resampler: av.AudioResampler, frame: Any) -> Iterator[Samples]:
    for one in resampler.resample(frame):
        yield one.to_ndarray().mean(axis=0, dtype=np.float32)
