"""An independent recogniser for the world of train/: pocketsphinx with bigrams of its sentences."""

import math
import random
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from language.texts import spoken, to_speak
from pocketsphinx import Decoder
from torchaudio.functional import resample
from world import WORDS

Samples = npt.NDArray[np.int16]

RATE_HZ = 16_000
NUM_SENTENCES = 6_000
_SHARE = 0.7  # of a word's followers that were counted; the rest is for any word
_SHARPNESS = 64  # of the resampler: zero crossings; what is below 7.9 kHz is kept
_QUIET = np.zeros(RATE_HZ // 5, np.int16)


class Ear:
    """Writes down the words of a sound.

    A grammar of any row of words takes pocketsphinx up to a minute a sentence, the bigrams half a
    second.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bigrams.arpa"
            path.write_text(bigrams(), "utf-8")
            self._decoder = Decoder(lm=str(path), loglevel="FATAL")

    def hear(self, samples: Samples) -> list[str]:
        """The words of samples [n] at RATE_HZ."""
        self._decoder.start_utt()
        whole = np.concatenate([_QUIET, samples, _QUIET]).tobytes()
        self._decoder.process_raw(whole, no_search=False, full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return re.sub(r"\(\d\)", "", heard.hypstr).lower().split() if heard else []


def hearable(wave: npt.NDArray[np.float32], rate_hz: int) -> Samples:
    """Return a wave float32 [n] in -1 ... 1 at RATE_HZ: straight lines would dull each s."""
    made = resample(torch.from_numpy(wave), rate_hz, RATE_HZ, lowpass_filter_width=_SHARPNESS)
    samples: Samples = (made.clamp(-1, 1) * 32767).short().numpy()
    return samples


def bigrams() -> str:
    """Bigrams of answers and spoken questions in ARPA's format, with every word of the world."""
    pick = random.Random(3)
    words_alone: Counter[str] = Counter(word.lower() for word in WORDS)
    pairs: Counter[tuple[str, str]] = Counter()
    for number in range(NUM_SENTENCES):
        text = to_speak(pick) if number % 3 else spoken(pick)[1]
        row = ["<s>", *words(text), "</s>"]
        words_alone.update(row)
        pairs.update(pairwise(row))
    total, rest = words_alone.total(), math.log10(1 - _SHARE)
    lines = ["\\data\\", f"ngram 1={len(words_alone)}", f"ngram 2={len(pairs)}", "", "\\1-grams:"]
    lines += [
        f"{math.log10(count / total):.4f} {word} {rest:.4f}"
        for word, count in sorted(words_alone.items())
    ]
    lines += ["", "\\2-grams:"]
    lines += [
        f"{math.log10(_SHARE * count / words_alone[first]):.4f} {first} {second}"
        for (first, second), count in sorted(pairs.items())
    ]
    return "\n".join([*lines, "", "\\end\\", ""])


def words(text: str) -> list[str]:
    """As the recogniser writes them."""
    return re.findall(r"[a-z']+", text.lower())


def errors(wanted: Sequence[str], heard: Sequence[str]) -> int:
    """Words to change, add and take away: the edit distance."""
    row = list(range(len(heard) + 1))
    for one in wanted:
        before, row[0] = row[0], row[0] + 1
        for index, other in enumerate(heard):
            before, row[index + 1] = (
                row[index + 1],
                min(before + (one != other), row[index] + 1, row[index + 1] + 1),
            )
    return row[-1]
