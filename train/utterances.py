"""Spoken texts on disk: what is said, where each word ends, and the samples in whole frames."""

import pickle
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from language.samples import Writer

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


@dataclass(frozen=True)
class Said:
    """A text's tokens, its voice, and its codes int16 [t, codebooks]."""

    tokens: list[int]
    speaker: int
    codes: npt.NDArray[np.int16]
    ends: npt.NDArray[np.float32]  # of the tokens, in frames


def flattened(utterances: list[Utterance], writer: Writer) -> dict[str, torch.Tensor]:
    """Tokens of all texts and where they end; `frames` and `texts` have where each begins."""
    tokens: list[int] = []
    ends, texts, frames = [], [0], [0]
    for one in utterances:
        tokens += writer.ids(one.text)
        ends.append(one.token_ends(writer.offsets(one.text)))
        texts.append(len(tokens))
        frames.append(frames[-1] + one.frames)
    return {
        "tokens": torch.tensor(tokens, dtype=torch.int16),
        "ends": torch.from_numpy(np.concatenate(ends)).float(),
        "texts": torch.tensor(texts),
        "frames": torch.tensor(frames),
        "speakers": torch.tensor([one.speaker for one in utterances]),
    }


def codes_path(out: Path, data: Path) -> Path:
    """The file with the codes of a folder of sounds."""
    return out / f"codes-{data.name}.pt"


class Library:
    """The utterances of all files of codes in a folder, also of those that come later."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._files: dict[Path, dict[str, torch.Tensor]] = {}

    def look(self) -> None:
        """Open what has come; raises FileNotFoundError if nothing has."""
        for path in sorted(self._out.glob("codes-*.pt")):
            if path not in self._files:
                self._files[path] = torch.load(path, mmap=True, weights_only=True)
        if not self._files:
            raise FileNotFoundError(f"{self._out} has no codes")

    def draw(self, pick: random.Random, held_out: bool = False) -> Said:
        """One whose text is not longer than its sound, of those that are trained or held out."""
        files = list(self._files.values())
        while True:
            # Rounds have the same size.
            file = files[0] if held_out else pick.choice(files)
            trained = len(file["speakers"]) - HELD_OUT
            one = trained + pick.randrange(HELD_OUT) if held_out else pick.randrange(trained)
            (start, end), (first, last) = (
                file[name][one : one + 2].tolist() for name in ("texts", "frames")
            )
            if end - start + 1 < last - first:
                return Said(
                    file["tokens"][start:end].tolist(),
                    int(file["speakers"][one]),
                    file["codes"][first:last].numpy(),
                    file["ends"][start:end].numpy(),
                )


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
