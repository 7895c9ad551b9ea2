"""A `generate` that is forced follows the choices, and says how likely each was."""

import math

import pytest
import torch

from omnistage.stages.messages.to_reference import Choices
from omnistage.stages.reference.forced import FURTHEST_NATS, Forced, joined, part_of

SCORES = torch.tensor([[0.7, 0.2, 0.1, 0.0]]).log()
IDS = torch.zeros(1, 0, dtype=torch.long)


def test_only_the_token_is_left_at_each_step() -> None:
    forced = Forced([1, 0])
    assert forced(IDS, SCORES).tolist() == [[-math.inf, 0, -math.inf, -math.inf]]
    assert forced(IDS, SCORES).tolist() == [[0, -math.inf, -math.inf, -math.inf]]
    assert forced.choices.best == [0, 0]
    assert forced.choices.gaps == pytest.approx([math.log(0.7 / 0.2), 0])
    assert forced.choices.logprobs == pytest.approx([math.log(0.2), math.log(0.7)], abs=1e-6)


def test_what_is_ruled_out_is_finitely_far() -> None:
    forced = Forced([3])
    forced(IDS, SCORES)
    assert forced.choices.gaps == [FURTHEST_NATS]
    assert forced.choices.logprobs == [-FURTHEST_NATS]


def test_of_several_ends_the_likeliest_is_taken() -> None:
    forced = Forced([[2, 1]])
    assert forced(IDS, SCORES)[0].argmax() == 1
    assert forced.choices.gaps == pytest.approx([math.log(0.7 / 0.2)])


def test_scores_that_are_no_numbers_are_no_tie() -> None:
    forced = Forced([1])
    forced(IDS, torch.full((1, 4), math.nan))
    assert not forced.choices.gaps[0] <= FURTHEST_NATS - 1


def test_choices_are_cut_and_joined() -> None:
    one = Choices([1, 2, 3], [0.1, 0.2, 0.3], [-1.0, -2.0, -3.0])
    assert joined([part_of(one, 0, 1), part_of(one, 1, 3)]) == one
    assert part_of(one, 3, 3) == Choices()
