"""What both the package's code and ours are given: no library but numpy."""

import numpy as np
import numpy.typing as npt

NUM_STREAMS, NUM_FRAMES = 2, 24
NUM_CODEBOOKS, CODEBOOK_SIZE = 4, 64  # of a tiny checkpoint
STRIDE = 7  # of the recorded samples: prime to those of a frame, so that all phases are there
LENGTHS = (24_000, 19_200, 30_001, 5_000, 1_921)  # of sounds, in samples at 24 kHz


def codes() -> npt.NDArray[np.int32]:
    """Of the decoded streams [streams, frames, codebooks]."""
    shape = (NUM_STREAMS, NUM_FRAMES, NUM_CODEBOOKS)
    return np.random.default_rng(1).integers(0, CODEBOOK_SIZE, shape, dtype=np.int32)


def sound(num_samples: int) -> npt.NDArray[np.float32]:
    """A tone that rises, in noise: mono, at 24 kHz."""
    times = np.arange(num_samples) / 24_000
    noise = np.random.default_rng(num_samples).standard_normal(num_samples)
    rising = np.sin(2 * np.pi * (200 * times + 240 * times**2))
    return (0.3 * rising + 0.05 * noise).astype(np.float32)
