"""Reads encoded sound back."""

import io

import av
import numpy as np
import numpy.typing as npt

# Samples that the shortest file has: formats without a header have one silent frame at least.
SHORTEST = {"wav": 0, "flac": 0, "pcm": 0, "pcm16": 0, "opus": 2, "mp3": 3 * 1152, "aac": 2 * 2048}
PCM = ("pcm", "pcm16")
RATE_HZ = 24_000  # of Qwen3-Omni, and of the fake stages


def num_samples_of(form: str, data: bytes) -> int:
    """How many samples a file of one of the gateway's formats has; PCM has no container."""
    if form in PCM:
        return len(data) // 2
    with av.open(io.BytesIO(data)) as container:
        assert container.format.name == {"opus": "ogg"}.get(form, form)
        return sum(frame.samples for frame in container.decode(audio=0))


def samples_of(data: bytes, rate_hz: int = RATE_HZ) -> npt.NDArray[np.int16]:
    """A file's samples, mono and at this rate."""
    return channels_of(data, 1, rate_hz)[:, 0]


def channels_of(data: bytes, num_channels: int, rate_hz: int) -> npt.NDArray[np.int16]:
    """A file's samples [n, channels] at this rate."""
    resampler = av.AudioResampler("s16", {1: "mono", 2: "stereo"}[num_channels], rate_hz)
    with av.open(io.BytesIO(data)) as container:
        frames = [*container.decode(audio=0), None]
    parts = [part.to_ndarray()[0] for frame in frames for part in resampler.resample(frame)]
    samples: npt.NDArray[np.int16] = np.concatenate(parts).reshape(-1, num_channels)
    return samples


def rate_of(data: bytes) -> int:
    """The rate that a file's reader is told."""
    with av.open(io.BytesIO(data)) as container:
        return int(container.streams.audio[0].rate)


def num_channels_of(data: bytes) -> int:
    """The channels that a file's reader is told."""
    with av.open(io.BytesIO(data)) as container:
        return int(container.streams.audio[0].channels)
