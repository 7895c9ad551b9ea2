"""Which rows of drafts leave: of tokens that were accepted, as if none had been drafted."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnistage.stages.vllm.bridge.drafts import Drafts, draft_lines


def test_the_last_tokens_of_a_request_are_its_drafts() -> None:
    output: Any = SimpleNamespace(
        num_scheduled_tokens={"prefill": 5, "drafted": 4, "plain": 1, "short": 2},
        scheduled_spec_decode_tokens={"short": [7], "drafted": [1, 2, 3]},
    )
    expected = [False] * 5 + [False, True, True, True] + [False] + [False, True]
    assert draft_lines(output).tolist() == expected


def request(name: str, num_tokens: int) -> Any:
    return SimpleNamespace(request_id=name, num_tokens=num_tokens)


@pytest.fixture
def held() -> tuple[Drafts, Any, Any]:
    """Two requests of 10 and 20 tokens, with three and two drafts behind them."""
    drafts, one, other = Drafts(), request("one", 10), request("other", 20)
    drafts.watch(one)
    drafts.watch(other)
    drafts.hold(["one", "other"], [3, 2], np.array([10, 11, 12, 20, 21]))
    return drafts, one, other


@pytest.mark.parametrize(
    ("num_one", "num_other", "expected"),
    [
        (1, 1, []),  # a step makes a token of its own, whatever it accepts
        (2, 3, [0, 3, 4]),
        (4, 1, [0, 1, 2]),
        (4, 3, [0, 1, 2, 3, 4]),
    ],
)
def test_as_many_leave_as_were_accepted(
    num_one: int, num_other: int, expected: list[int], held: tuple[Drafts, Any, Any]
) -> None:
    drafts, one, other = held
    one.num_tokens += num_one
    other.num_tokens += num_other
    accepted = drafts.settle()
    assert accepted is not None
    assert accepted.tolist() == expected
    assert drafts.settle() is None


def test_drafts_of_a_request_that_ended_are_settled_and_it_is_forgotten(
    held: tuple[Drafts, Any, Any],
) -> None:
    """It ended by its second draft, which as the last token of an answer is not fed back."""
    drafts, one, _ = held
    one.num_tokens += 2
    drafts.forget("one")
    assert len(drafts) == 1
    accepted = drafts.settle()
    assert accepted is not None
    assert accepted.tolist() == [0]


def test_where_no_draft_waits_nothing_is_settled() -> None:
    assert Drafts().settle() is None
