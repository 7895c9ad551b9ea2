"""How likely each frame is speech: by Silero's model where it is installed, else by loudness."""

from bisect import bisect_left, insort
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
        self._levels: deque[float] = deque()
        self._sorted: list[float] = []  # the same levels: a percentile costs no sorting

    async def probabilities(self, frames: Frames) -> Probabilities:
        """Return how likely each frame is speech."""
        power = np.square(frames).mean(axis=1)
        levels = 10 * np.log10(power + 1e-10)
        return np.array([self._probability(float(level)) for level in levels], np.float32)

    def _probability(self, level: float) -> float:
        floor = self._floor_with(level)
        if len(self._levels) < WINDOW_FRAMES:
            floor = min(floor, QUIET_DB)
        if level < SILENCE_DB:
            return 0.0
        return min(max((level - floor) / SPEECH_DB, 0.0), 1.0)

    def _floor_with(self, level: float) -> float:
        """Add a level; returns the tenth percentile of those of the window, interpolated."""
        if len(self._levels) == WINDOW_FRAMES:
            del self._sorted[bisect_left(self._sorted, self._levels.popleft())]
        self._levels.append(level)
        insort(self._sorted, level)
        number, part = divmod(0.1 * (len(self._sorted) - 1), 1)
        low = self._sorted[int(number)]
        high = self._sorted[min(int(number) + 1, len(self._sorted) - 1)]
        return low + part * (high - low)
