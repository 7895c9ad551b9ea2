"""Deltas of calls: one entry of each call, whatever was made at once."""

from typing import Any

import pytest

from omnistage.server.tasks.chat.chunks import delta_of

HEAD = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}


def part(index: int, arguments: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments}}


def whole(index: int, arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {**HEAD, "index": index, "function": function}


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([HEAD], [HEAD]),
        ([part(0, "{")], [part(0, "{")]),
        ([HEAD, part(0, "{}")], [whole(0, "{}")]),
        ([HEAD, part(0, "{"), part(0, "}")], [whole(0, "{}")]),
        ([part(0, "}"), {**HEAD, "index": 1}, part(1, "{")], [part(0, "}"), whole(1, "{")]),
    ],
    ids=["a name", "arguments", "a call", "a call in pieces", "the end of one and another"],
)
def test_a_delta_has_one_entry_of_each_call(
    parts: list[dict[str, Any]], joined: list[dict[str, Any]]
) -> None:
    """Clients such as instructor read the first entry of a delta alone."""
    assert delta_of({"delta": {"tool_calls": parts}}) == {"tool_calls": joined}
