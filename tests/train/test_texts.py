"""The small model's world: numbers in words, and a held-out part that training never sees."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from batches import spelled
from language.questions import FEW, question
from language.samples import HOP, Sound, Writer, num_audio_tokens, tokenizer_of_all
from language.tasks import Asked, Tasks
from language.texts import talk, to_speak
from language.tools import tool_talk
from make_data import questions_about_pictures
from pictures import scene
from utterances import Utterance
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
        assert kind in FEW or not is_held_out(asked)
        assert is_held_out(question(pick, ("sum", "next", "fact"), held_out=True)[1])
        assert not is_held_out(to_speak(pick))
        assert is_held_out(to_speak(pick, held_out=True))
        assert not is_held_out(scene(pick).words)
        made = talk(pick, held_out=True)
        assert made.kind in (*FEW, "memory") or is_held_out(made.question)


def test_a_tool_call_is_held_out_by_its_turns() -> None:
    pick = random.Random(1)
    for held_out in (False, True):
        for _ in range(200):
            made = tool_talk(pick, held_out)
            if made.kind == "tool call" and len(made.turns) == 2:
                assert is_held_out(made.question) == held_out


def test_only_answers_are_learned() -> None:
    writer = Writer()
    sample = writer.sample("greeting", ("Hello", "Hi.", "Who?", "Small."), "Be kind.")
    learned = writer.tokenizer.tokenizer.decode(
        sample.ids[sample.learned].tolist(), skip_special_tokens=False
    )
    assert learned == "Hi.<|im_end|>Small.<|im_end|>"


def test_a_tokens_end_lies_within_its_words_time() -> None:
    one = Utterance("One two, three.", 0, ends=(1280, 3840, 7680), frames=6)
    # "One", " tw", "o", ",", " three."
    ends = one.token_ends([(0, 3), (3, 6), (6, 7), (7, 8), (8, 15)])
    assert ends[0] == 1
    assert ends[3] == 3
    assert ends[4] == 6
    assert list(ends) == sorted(ends)


@pytest.mark.parametrize(
    ("words", "rows", "fits"),
    [("a b", 9, True), ("a b", 1, False), ("aaaa", 4, False), ("", 1, True)],
)
def test_a_sound_of_too_few_rows_has_no_loss_of_words(words: str, rows: int, fits: bool) -> None:
    encode = tokenizer_of_all().tokenizer.encode
    tokens = encode(words).ids
    repeats = sum(one == two for one, two in pairwise(tokens))
    made = spelled([words], torch.tensor([rows]))
    assert bool(made["has_rows"][0]) == (len(tokens) + repeats <= rows)
    assert fits == bool(made["has_rows"][0])


def test_every_task_makes_samples_with_a_row_for_each_part_of_its_media() -> None:
    sound = Sound(np.zeros(16_000, np.int16), "What is the weather in Rome?")
    asked = [Asked("weather", sound, "I do not know that.", "Rome")]
    about = {question: [sound] for question in questions_about_pictures()}
    tasks, pick = Tasks(asked, about), random.Random(2)
    writer = Writer()
    image, audio = (writer.tokenizer.id(f"<|{name}_pad|>") for name in ("image", "audio"))
    for make in tasks.kinds.values():
        for _ in range(20):
            one = make(pick)
            cells = sum(high * wide for high, wide in (each.cells for each in one.pictures))
            assert (one.ids == image).sum() == cells
            rows = sum(num_audio_tokens(len(each.samples) // HOP) for each in one.sounds)
            assert (one.ids == audio).sum() == rows
            assert one.learned.any()
            assert one.positions.shape == (3, len(one.ids))
