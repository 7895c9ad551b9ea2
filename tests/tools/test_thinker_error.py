"""The figures of `make thinker-error`, of engines that are told by hand."""

import pytest
import torch
from thinker_error import Heard, Read, error_of, leading_equal


def heard(answers: list[list[int]], logprobs: list[float], rows: list[list[float]]) -> Heard:
    likeliest = torch.tensor([False, *(logprob > -1.0 for logprob in logprobs[1:])])
    read = Read(torch.tensor(logprobs), likeliest, torch.tensor(rows))
    return Heard([[1, 2]], answers, [read])


def test_tokens_count_up_to_the_first_that_differs() -> None:
    assert leading_equal([1, 2, 3], [1, 2, 3]) == 3
    assert leading_equal([1, 2, 3, 4], [1, 9, 3, 4]) == 1
    assert leading_equal([1], [2]) == 0


def test_an_engine_is_as_far_from_another_as_its_figures_are() -> None:
    base = heard([[5, 6]], [-3.0, -0.5, -0.25], [[3.0, 4.0]])
    other = heard([[5, 7]], [-3.0, -0.75, -1.75], [[3.0, 4.5]])
    assert error_of(base, other) == {
        "equal": 0.5,
        "likeliest": 0.5,
        "mean_logprob": pytest.approx((0.25 + 1.5) / 3),
        "max_logprob": 1.5,
        "row_error": pytest.approx(0.5 / 5.0),
    }
    assert error_of(base, base)["row_error"] == 0.0
    assert error_of(base, base)["equal"] == 1.0
