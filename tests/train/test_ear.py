"""The ear hears other voices than ours, and hears what is missing and what is too much."""

import numpy as np
import pytest
from ear import RATE_HZ, errors, words
from support.audio import samples_of
from support.recordings import SAID, ear, heard, recording

WORD = RATE_HZ * 2 // 5  # samples: a word's, roughly


def test_questions_that_flite_spoke_are_heard() -> None:
    wrong = {
        name: said for name in SAID if (said := heard(recording(name))).split() != words(SAID[name])
    }
    assert sum(errors(words(SAID[name]), said.split()) for name, said in wrong.items()) <= 3, wrong


def test_a_cut_word_and_a_tail_are_heard() -> None:
    """What the tests of the small model's speech rely on."""
    samples = samples_of(recording("day_after_monday"), RATE_HZ)
    wanted = words(SAID["day_after_monday"])
    assert ear().hear(samples) == wanted
    assert errors(wanted, ear().hear(samples[:-WORD])) > 0
    assert errors(wanted, ear().hear(np.concatenate([samples, samples[-2 * WORD :]]))) > 0


@pytest.mark.parametrize(
    ("heard_words", "number"),
    [("a b c", 0), ("a c", 1), ("a b c d", 1), ("a x c", 1), ("", 3), ("c b a", 2)],
)
def test_errors_are_words_to_change_add_or_take_away(heard_words: str, number: int) -> None:
    assert errors(["a", "b", "c"], heard_words.split()) == number
