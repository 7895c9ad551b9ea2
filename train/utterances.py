"""Spoken texts on disk: what is said, where each word ends, and the samples in whole frames."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAME_16K = 1280  # 80 ms
HELD_OUT = 512  # the last ones of all, which are judged and never trained


@dataclass(frozen=True)
class Utterance:
    """A text in a voice; `ends`: of its words, in samples; `frames`: its sound's length."""

    text: str
    speaker: int
    ends: tuple[int, ...]
    frames: int

    def token_ends(self, offsets: list[tuple[int, int]]) -> npt.NDArray[np.float64]:
        """In frames, of tokens with these places in the text: words last as they are written."""
        starts, at = [], 0
        words = self.text.split()
        for word in words:
            at = self.text.index(word, at)
            starts.append(at)
            at += len(word)
        times = np.asarray([0, *self.ends], np.float64) / FRAME_16K
        if len(times) != len(words) + 1:
            times = np.linspace(0, self.frames, len(words) + 1)
        places = [*(start - (start > 0) for start in starts), len(self.text)]
        return np.interp([end for _, end in offsets], places, times)


def padded_frames(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Samples with silence behind them, of whole frames."""
    return np.pad(samples, (0, -len(samples) % FRAME_16K))


def save_part(folder: Path, part: int, samples: list[npt.NDArray[np.int16]]) -> None:
    """Samples of one process, each of whole frames."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"waves-{part:06}.npy", np.concatenate(samples))


def load_utterances(data: Path) -> list[Utterance]:
    """All of them, in the order of their samples."""
    with (data / "utterances.pkl").open("rb") as file:
        made: list[Utterance] = pickle.load(file)
    return made


def load_waves(data: Path) -> list[npt.NDArray[np.int16]]:
    """The samples, part after part."""
    return [np.load(path) for path in sorted((data / "waves").glob("waves-*.npy"))]
