"""Samples as PyAV has them."""

from fractions import Fraction

import av
import numpy as np

from omnistage.server.runtime.samples import SampleFormat

LAYOUTS = {1: "mono", 2: "stereo"}


def layout_of(samples: SampleFormat) -> str:
    """FFmpeg's name of their channels."""
    return LAYOUTS[samples.num_channels]


def audio_frame(pcm: bytes, position: int, samples: SampleFormat) -> av.AudioFrame:
    """Samples as PyAV wants them; `position`: how many of each channel came before them."""
    packed = np.frombuffer(pcm, "<i2")[None]
    frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout_of(samples))
    frame.sample_rate = samples.rate_hz
    frame.time_base = Fraction(1, samples.rate_hz)
    frame.pts = position
    return frame
