"""How likely each frame is speech: by Silero's model where it is installed, else by loudness."""

from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omnistage.server.realtime.voice.listening import FRAME_MS, Frames

Probabilities = npt.NDArray[np.float32]

WINDOW_FRAMES = round(5000 / FRAME_MS)
QUIET_DB = -45.0  # of a room nobody has spoken in yet, at most
SILENCE_DB = -55.0  # below it nothing is speech
SPEECH_DB = 20.0  # above the floor: certainly speech


class Detector(Protocol):
    """Judges the frames of one session, in their order."""

    async def probabilities(self, frames: Frames) -> Probabilities:
        """Return how likely each of float32 [n, 512] is speech, 0 to 1: float32 [n]."""


class EnergyDetector:
    """Takes for speech what is louder than the room: 10 dB above its floor is half likely.

    The floor is the tenth percentile of the last 5 s.
    """

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=WINDOW_FRAMES)

    async def probabilities(self, frames: Frames) -> Probabilities:
        """Return how likely each frame is speech."""
        power = np.square(frames).mean(axis=1)
        levels = 10 * np.log10(power + 1e-10)
        return np.array([self._probability(float(level)) for level in levels], np.float32)

    def _probability(self, level: float) -> float:
        self._levels.append(level)
        floor = float(np.percentile(self._levels, 10))
        if len(self._levels) < WINDOW_FRAMES:
            floor = min(floor, QUIET_DB)
        if level < SILENCE_DB:
            return 0.0
        return float(np.clip((level - floor) / SPEECH_DB, 0.0, 1.0))
