"""The ear hears other voices than ours, and hears what is missing and what is too much."""

import numpy as np
import pytest
from ear import RATE_HZ, errors, hearable, words
from support.media.audio import samples_of
from support.oracles.recordings import SAID, ear, heard, recording

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


@pytest.mark.parametrize(("tone_hz", "kept"), [(1000, 1.0), (7500, 1.0), (9000, 0.0)])
def test_a_sound_at_another_rate_keeps_what_the_ear_can_hear_and_no_more(
    tone_hz: int, kept: float
) -> None:
    """An s lies between 5 and 8 kHz; what is above must not come back below."""
    rate_hz = 24_000
    tone = 0.5 * np.sin(2 * np.pi * tone_hz / rate_hz * np.arange(rate_hz, dtype=np.float32))
    made = hearable(tone.astype(np.float32), rate_hz).astype(np.float64) / 32767
    assert len(made) == RATE_HZ
    inside = made[RATE_HZ // 4 : -RATE_HZ // 4]
    assert np.sqrt(2 * np.square(inside).mean()) / 0.5 == pytest.approx(kept, abs=0.02)
