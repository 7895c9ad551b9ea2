"""Talks as token ids, rendered as the chat template does, with their pictures and sounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from language.tokens import make_tokenizer

from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.vllm.models.rope import Grid, rope_positions

HOP = 160
PATCH = 32  # pixels a side of one token


@dataclass(frozen=True)
class Picture:
    """Pixels uint8 [height, width, 3], and what is in its cells: scenes.labels."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.pixels.shape[0] // PATCH, self.pixels.shape[1] // PATCH


@dataclass(frozen=True)
class Sound:
    """Samples int16 [n] at 16 kHz, whole hops, and the words that they say."""

    samples: npt.NDArray[np.int16]
    words: str


@dataclass(frozen=True)
class Sample:
    """Token ids of a talk, what of them is learned, and its media in their order."""

    kind: str
    ids: npt.NDArray[np.int64]
    learned: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]  # [3, n]
    pictures: tuple[Picture, ...] = ()
    sounds: tuple[Sound, ...] = ()

    @property
    def prompt(self) -> npt.NDArray[np.int64]:
        """The ids before the last answer, the part that is learned."""
        ends = np.flatnonzero(~self.learned[:-1] & self.learned[1:]) + 1
        return self.ids[: ends[-1]]


def num_audio_tokens(num_frames: int) -> int:
    """As the audio tower shortens mel frames."""
    rest = num_frames % 100
    first = (rest - 1) // 2 + 1
    return ((first - 1) // 2 + 1 - 1) // 2 + 1 + (num_frames // 100) * 13


@cache
def tokenizer_of_all() -> TinyTokenizer:
    """Made once a process."""
    return make_tokenizer()


class Writer:
    """Renders talks as the chat template does."""

    def __init__(self) -> None:
        self.tokenizer: TinyTokenizer = tokenizer_of_all()
        self._image = self.tokenizer.id("<|image_pad|>")

    def ids(self, text: str) -> list[int]:
        """Token ids; names of special tokens are those tokens."""
        return list(self.tokenizer.tokenizer.encode(text).ids)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text."""
        return list(self.tokenizer.tokenizer.encode(text).offsets)

    def sample(
        self,
        kind: str,
        turns: Sequence[str],
        system: str = "",
        pictures: tuple[Picture, ...] = (),
        sounds: tuple[Sound, ...] = (),
    ) -> Sample:
        """One of user and assistant turns by turns, which have the marks of the media."""
        ids: list[int] = []
        learned: list[bool] = []

        def add(text: str, is_learned: bool = False) -> None:
            new = self.ids(text)
            ids.extend(new)
            learned.extend([is_learned] * len(new))

        if system:
            add(f"<|im_start|>system\n{system}<|im_end|>\n")
        for index, turn in enumerate(turns):
            role = ("user", "assistant")[index % 2]
            add(f"<|im_start|>{role}\n")
            add(f"{turn}<|im_end|>", role == "assistant")
            add("\n")
        array = np.asarray(ids, np.int64)
        return Sample(
            kind, array, np.asarray(learned), self._positions(array, pictures), pictures, sounds
        )

    def _positions(
        self, ids: npt.NDArray[np.int64], pictures: Sequence[Picture]
    ) -> npt.NDArray[np.int64]:
        grids = self.grids(ids, [one.cells for one in pictures])
        return rope_positions(len(ids), grids).astype(np.int64)

    def grids(self, ids: npt.NDArray[np.int64], cells: Sequence[tuple[int, int]]) -> list[Grid]:
        """Where the pictures of so many rows and columns of tokens are among the ids."""
        starts = np.flatnonzero((ids[1:] == self._image) & (ids[:-1] != self._image)) + 1
        return [Grid(int(start), (1, *size), 1) for start, size in zip(starts, cells, strict=True)]


def picture_marks(one: Picture) -> str:
    """A picture's tokens."""
    rows, columns = one.cells
    return f"<|vision_start|>{'<|image_pad|>' * (rows * columns)}<|vision_end|>"


def sound_marks(one: Sound) -> str:
    """A sound's tokens."""
    pads = "<|audio_pad|>" * num_audio_tokens(len(one.samples) // HOP)
    return f"<|audio_start|>{pads}<|audio_end|>"
