"""Samples at another rate."""

import av
import numpy as np
import numpy.typing as npt

LAYOUTS = {1: "mono", 2: "stereo"}


def resampled(data: npt.NDArray[np.float32], rate_hz: int, own_hz: int) -> npt.NDArray[np.float32]:
    """Samples [channels, n] of one rate at another."""
    layout = LAYOUTS[len(data)]
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(data), format="fltp", layout=layout)
    frame.sample_rate = rate_hz
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=own_hz)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray() for part in parts], axis=1)
