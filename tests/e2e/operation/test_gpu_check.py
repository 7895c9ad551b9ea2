"""What `make gpu` takes for right and for wrong, on the tiny server."""

from dataclasses import replace

import pytest
from judging import NUM_FRAMES, Verdict, ask_all, judge, nan_steps
from support.servers.server import TinyServer

GOOD = Verdict(
    name="some",
    num_tokens=1000,
    num_above=10,
    worst=1.9,
    num_empty=0,
    num_comparable=10,
    num_same_codes=6,
)


def test_what_rounding_explains_is_right() -> None:
    assert GOOD.is_right
    assert replace(GOOD, num_comparable=0, num_same_codes=0).is_right


@pytest.mark.parametrize(
    "wrong",
    [
        replace(GOOD, num_above=11),
        replace(GOOD, worst=2.0),
        replace(GOOD, worst=float("nan")),
        replace(GOOD, num_empty=1),
        replace(GOOD, num_same_codes=5),
        replace(GOOD, num_tokens=0, num_above=0),
    ],
)
def test_what_it_does_not_explain_is_wrong(wrong: Verdict) -> None:
    assert not wrong.is_right


@pytest.mark.engine
async def test_answers_are_right_and_others_in_their_place_are_not(server: TinyServer) -> None:
    answers = await ask_all(server, "ethan", ["one two three", "four five six"], NUM_FRAMES)
    own = await judge(server, "own", answers, answers, NUM_FRAMES)
    swapped = [replace(one, text=two.text) for one, two in zip(answers, answers[::-1], strict=True)]
    zeros = [replace(one, text=[0] * len(one.text)) for one in answers]
    mute = [replace(one, codes=[[0] * 16 for _ in one.codes]) for one in answers]
    cut = [replace(one, codes=one.codes[:-1]) for one in answers]
    rounds = {"swapped": swapped, "zeros": zeros, "mute": mute, "cut": cut}
    assert own.is_right
    assert own.worst < 1e-3
    for name, others in rounds.items():
        assert not (await judge(server, name, others, answers, NUM_FRAMES)).is_right
    assert not any(nan_steps(server).values())
