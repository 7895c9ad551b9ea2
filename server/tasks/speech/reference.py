"""A sound whose voice is to be spoken with: decoded once, as the stages take it."""

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np

from omnistage.server.common.errors import invalid
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_url
from omnistage.server.media.sound import Samples, SoundLimits, SoundTrack

RATE_HZ = 24_000
MIN_S = 0.5
LIMITS = SoundLimits(max_s=60.0, min_rate_hz=4_000)


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
    """Returns what a URL names; raises ApiError for one that nobody here reads."""
    part = {"type": "audio_url", "audio_url": {"url": checked_url(url, place)}}
    return Medium(place, part)


def samples_of(data: bytes, place: str) -> Samples:
    """The sound of a file, its channels mixed to one; may take a while. Raises ApiError."""
    samples = np.concatenate(list(SoundTrack(data, place, LIMITS).samples(RATE_HZ)))
    if len(samples) < MIN_S * RATE_HZ:
        raise invalid(place, f"is shorter than {MIN_S:g} s")
    if not samples.any():
        raise invalid(place, "is silent")
    return samples
