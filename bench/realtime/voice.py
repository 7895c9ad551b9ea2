"""The voices of the sessions: recordings, or a synthesized voice; 24 kHz, int16 [n], mono."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import av
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.int16]

RATE_HZ = 24_000
PITCH_HZ = 130.0
FORMANTS_HZ = (700.0, 1200.0, 2600.0)
FORMANT_WIDTH_HZ = 150.0
SYLLABLES_A_S = 4.0
LOUD = 9000.0
MIN_S = 0.2  # of speech that a turn needs to be detected


def read(path: Path) -> Samples:
    """Return the first audio of a file of any format; raises ValueError."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
    try:
        with av.open(str(path)) as file:
            frames = [one for frame in file.decode(audio=0) for one in resampler.resample(frame)]
            frames += resampler.resample(None)
    except (av.FFmpegError, IndexError, OSError) as error:
        raise ValueError(f"--audio: {str(path)!r} has no audio that can be read: {error}") from None
    pieces = [frame.to_ndarray()[0] for frame in frames]
    samples: Samples = np.concatenate([np.zeros(0, np.int16), *pieces])
    if len(samples) < MIN_S * RATE_HZ:
        raise ValueError(f"--audio: {str(path)!r} is shorter than {MIN_S:g} s")
    return samples


def synthesized(seconds: float, seed: int) -> Samples:
    """Return something like a vowel in syllables, of a pitch that moves; no words."""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    drift = 1 + 0.06 * np.sin(2 * np.pi * 0.7 * times + random.uniform(0, 6))
    phase = 2 * np.pi * np.cumsum(PITCH_HZ * random.uniform(0.8, 1.3) * drift) / RATE_HZ
    wave = np.zeros_like(times)
    for harmonic in range(1, 28):
        distance = (harmonic * PITCH_HZ - np.array(FORMANTS_HZ)) / FORMANT_WIDTH_HZ
        wave += (0.05 + np.exp(-(distance**2)).sum()) * np.sin(harmonic * phase)
    wave *= 0.65 + 0.35 * np.sin(2 * np.pi * SYLLABLES_A_S * times)
    return np.asarray(LOUD * wave / np.abs(wave).max(), np.int16)


def silence(seconds: float) -> Samples:
    """Return digital silence."""
    return np.zeros(round(seconds * RATE_HZ), np.int16)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The audio of a user's turn, and whether it interrupts the answer before."""

    samples: Samples
    interrupts: bool = False

    @property
    def seconds(self) -> float:
        """Return its length."""
        return len(self.samples) / RATE_HZ


@dataclass(frozen=True, slots=True)
class Script:
    """Makes the turns of each session; those of a seed are always the same.

    `recordings` are taken in turns; without any, a synthesized voice speaks for `speech_s`.
    `false_ends` is the share of turns with a pause of `pause_s` in their middle, `interruptions`
    the share that begins while the answer before it plays.
    """

    num_turns: int
    seed: int
    speech_s: float = 2.0
    recordings: Sequence[Samples] = ()
    false_ends: float = 0.0
    pause_s: float = 0.3
    interruptions: float = 0.0

    def turns(self, session: int) -> list[UserTurn]:
        """Return the turns of one session."""
        random = Random(f"{self.seed}/{session}")
        return [self._turn(random, session, number) for number in range(self.num_turns)]

    def _turn(self, random: Random, session: int, number: int) -> UserTurn:
        if self.recordings:
            samples = self.recordings[(session + number) % len(self.recordings)]
        else:
            samples = synthesized(self.speech_s, random.randrange(1 << 32))
        pauses, interrupts = random.random() < self.false_ends, random.random()
        if pauses:
            halves = np.array_split(samples, 2)
            samples = np.concatenate([halves[0], silence(self.pause_s), halves[1]])
        return UserTurn(samples, interrupts=number > 0 and interrupts < self.interruptions)
