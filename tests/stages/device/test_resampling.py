"""Samples at another rate keep their sound."""

import numpy as np

from omnistage.stages.device.resampling import resampled


def test_a_tone_stays_the_same_tone() -> None:
    times = {rate: np.arange(rate) / rate for rate in (24_000, 16_000)}
    tones = {rate: np.sin(2 * np.pi * 440 * at).astype(np.float32) for rate, at in times.items()}
    for channels in (1, 2):
        given = np.stack([tones[24_000]] * channels)
        made = resampled(given, 24_000, 16_000)
        assert made.shape == (channels, 16_000)
        assert np.abs(made[:, 500:-500] - tones[16_000][500:-500]).max() < 0.01
