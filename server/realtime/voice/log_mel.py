"""Log-mel features as Whisper's feature extractor makes them, without torch."""

from functools import cache

import numpy as np
import numpy.typing as npt

from omnistage.server.realtime.voice.listening import HEARING_RATE_HZ

Floats = npt.NDArray[np.float32]

NUM_MELS = 80
WINDOW, HOP = 400, 160  # samples of 16 kHz
RANGE = 8.0  # what lies deeper below the loudest is cut
LINEAR_HZ, LINEAR_MELS = 1000.0, 15.0  # Slaney's scale is linear up to there
LOG_STEP = np.log(6.4) / 27.0


def log_mel(samples: Floats) -> Floats:
    """Return float32 [80, n // 160] of samples [n] at 16 kHz, which are normalized first."""
    normal = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    padded = np.pad(normal, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:-1]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    logs = np.log10(np.maximum(_filters() @ power.T, 1e-10))
    logs = np.maximum(logs, logs.max() - RANGE)
    features: Floats = ((logs + 4.0) / 4.0).astype(np.float32)
    return features


@cache
def _filters() -> npt.NDArray[np.float64]:
    """Return Slaney's triangles, of equal area: [80, 201]."""
    bins_hz = np.linspace(0, HEARING_RATE_HZ / 2, WINDOW // 2 + 1)
    edges_hz = _hz(np.linspace(0, _mels(HEARING_RATE_HZ / 2), NUM_MELS + 2))
    widths_hz = np.diff(edges_hz)
    slopes = edges_hz[:, None] - bins_hz
    rising, falling = -slopes[:-2] / widths_hz[:-1, None], slopes[2:] / widths_hz[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters: npt.NDArray[np.float64] = triangles * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]
    return filters


def _mels(hz: float) -> float:
    return float(LINEAR_MELS + np.log(hz / LINEAR_HZ) / LOG_STEP)


def _hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    is_linear = mels < LINEAR_MELS
    linear = LINEAR_HZ * mels / LINEAR_MELS
    return np.where(is_linear, linear, LINEAR_HZ * np.exp(LOG_STEP * (mels - LINEAR_MELS)))
