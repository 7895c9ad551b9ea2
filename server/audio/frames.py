"""Samples as PyAV has them."""

from fractions import Fraction

import av
import numpy as np


def audio_frame(pcm: bytes, position: int, rate_hz: int) -> av.AudioFrame:
    """Samples as PyAV wants them; `position`: how many came before them."""
    samples = np.frombuffer(pcm, "<i2")[None]
    frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
    frame.sample_rate = rate_hz
    frame.time_base = Fraction(1, rate_hz)
    frame.pts = position
    return frame
