"""Checks that what was heard of a checkpoint is kept batch by batch, and counted."""

from dataclasses import replace
from pathlib import Path

import pytest
from hear import MOST_FRAMES, Heard, Notes, batches

ORIGIN = {"folder": "small", "count": 2}
FLITE = Heard(0, "one two", "adam", None, ["one", "two"], 20)
OTHER = Heard(1, "three four", "diana", None, ["four"], 20)
OURS = [
    replace(FLITE, temperature=0.9, words=["seven", "eight"], frames=22),
    replace(OTHER, temperature=0.9, words=["three", "four"], frames=MOST_FRAMES),
]


def test_a_stopped_run_goes_on_after_its_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "heard" / "notes.json"
    Notes(path, ORIGIN).add([FLITE, OTHER])
    Notes(path, ORIGIN).add(OURS)
    again = Notes(path, ORIGIN)
    assert again.of(None) == {0: FLITE, 1: OTHER}
    assert list(again.of(0.9).values()) == OURS
    assert again.of(0.0) == {}


def test_notes_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    Notes(path, ORIGIN).add([FLITE])
    with pytest.raises(ValueError, match=r"is of .*small.*, not of .*other"):
        Notes(path, {**ORIGIN, "folder": "other"})


def test_wrong_words_nonsense_and_natural_ends_are_counted(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes.json", ORIGIN)
    notes.add([FLITE, OTHER, *OURS])
    assert "adam 0.0 (1), ben 0.0 (0), colin 0.0 (0), diana 50.0 (1)" in notes.summary(None)
    ours = notes.summary(0.9)
    assert "adam 100.0 (1)" in ours
    assert "diana 0.0 (1)" in ours
    assert "half of the words wrong in 1, of 1 flite's sound is understood" in ours
    assert "+91.0, off by 91.0; 1 ended by themselves" in ours


def test_batches_have_each_text_once_with_others_of_its_length() -> None:
    texts = ["a" * (number * 7 % 250) for number in range(250)]
    made = list(batches(texts))
    assert sorted(index for batch in made for index in batch) == list(range(250))
    assert all(
        max(len(texts[index]) for index in batch) - min(len(texts[index]) for index in batch) < 100
        for batch in made
    )
