"""Reads encoded sound back."""

import io

import av
import numpy as np
import numpy.typing as npt

from omnistage.server.runtime.samples import SAMPLE_RATE_HZ


def samples_of(data: bytes) -> npt.NDArray[np.int16]:
    """A file's samples at 24 kHz, mono."""
    resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE_HZ)
    with av.open(io.BytesIO(data)) as container:
        frames = [*container.decode(audio=0), None]
    parts = [part.to_ndarray()[0] for frame in frames for part in resampler.resample(frame)]
    samples: npt.NDArray[np.int16] = np.concatenate(parts)
    return samples
