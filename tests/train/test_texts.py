"""The small model's world: numbers in words, and a held-out part that training never sees."""

import random

import pytest
from pictures import scene
from samples import Writer
from texts import question, to_speak
from world import is_held_out, number


@pytest.mark.parametrize(
    ("value", "words"), [(0, "zero"), (13, "thirteen"), (20, "twenty"), (99, "ninety nine")]
)
def test_numbers_are_words(value: int, words: str) -> None:
    assert number(value) == words


def test_what_is_judged_is_never_trained() -> None:
    pick = random.Random(0)
    for _ in range(300):
        kind, asked, _ = question(pick)
        assert kind in ("greeting", "about", "thanks") or not is_held_out(asked)
        assert is_held_out(question(pick, ("sum", "next", "fact"), held_out=True)[1])
        assert not is_held_out(to_speak(pick))
        assert is_held_out(to_speak(pick, held_out=True))
        assert not is_held_out(scene(pick).words)


def test_only_answers_are_learned() -> None:
    writer = Writer()
    sample = writer.sample(("Hello", "Hi.", "Who?", "Small."), "Be kind.")
    learned = writer.tokenizer.tokenizer.decode(
        sample.ids[sample.learned].tolist(), skip_special_tokens=False
    )
    assert learned == "Hi.<|im_end|>Small.<|im_end|>"
