"""Which of an answer's tokens are spoken. Here the text of a token is one letter."""

from typing import Any

import pytest

from omnistage.stages.vllm.answers.released_tokens import ReleasedTokens


def delta(ids: list[int], text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"delta": {"content": text, **more}, "token_ids": ids, "finish_reason": finish}
    return {"choices": [choice]}


def spoken(*chunks: dict[str, Any], stop: list[str] | None = None) -> list[list[int]]:
    released = ReleasedTokens({"stop": stop}, len)
    return [released.add(chunk) for chunk in chunks]


def test_tokens_go_with_their_text() -> None:
    assert spoken(delta([1], "a"), delta([2, 3], "bc")) == [[1], [2, 3]]


def test_tokens_of_text_that_is_held_back_wait_for_it() -> None:
    """A character of several tokens, or what may begin a tool call."""
    assert spoken(delta([1]), delta([2]), delta([3], "a")) == [[], [], [1, 2, 3]]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_last_token_sampled_is_never_spoken(finish: str) -> None:
    assert spoken(delta([1], "a"), delta([2, 9], "b", finish)) == [[1], [2]]
    assert spoken(delta([9], "a", finish)) == [[]]


def test_of_text_cut_by_a_stop_string_only_what_was_released_is_spoken() -> None:
    chunks = [delta([1], ""), delta([2], "a"), delta([3], "b"), delta([4], "", "stop")]
    assert spoken(*chunks, stop=["cd"]) == [[], [1], [2], []]


def test_a_tool_call_is_not_spoken_nor_the_tokens_held_for_it() -> None:
    call = [{"index": 0, "function": {"name": "f"}}]
    chunks = [delta([1], "a"), delta([2]), delta([3], tool_calls=call), delta([4], "", "stop")]
    assert spoken(*chunks) == [[1], [], [], []]


def test_text_behind_reasoning_is_spoken() -> None:
    assert spoken(delta([1], reasoning="x"), delta([2]), delta([3], "a")) == [[], [], [3]]


def test_the_usage_chunk_says_nothing() -> None:
    assert spoken({"choices": [], "usage": {}}) == [[]]
