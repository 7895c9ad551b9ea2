"""What of a conversation goes when it is too long: whole turns, from the oldest on."""

from typing import Any

import pytest

from omnistage.server.responses.places import Places
from omnistage.server.responses.shorten import turns_to_drop

LETTERS = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def chat(roles: str) -> list[Any]:
    return [{"role": LETTERS[role], "content": "words"} for role in roles]


@pytest.mark.parametrize(
    ("roles", "wanted"),
    [
        ("", range(0)),
        ("s", range(0)),
        ("u", range(0)),
        ("su", range(1, 1)),
        ("uau", range(2)),
        ("sduau", range(2, 4)),
        ("suatau", range(1, 5)),  # a call goes with its output
        ("uauauauauau", range(4)),  # a fifth
        ("suuuuuuuuuu", range(1, 3)),
        ("auau", range(1)),  # what is left of a turn
        ("suatat", range(1, 1)),
    ],
)
def test_whole_turns_go_from_the_oldest_on(roles: str, wanted: range) -> None:
    assert turns_to_drop(chat(roles)) == wanted


def test_places_are_those_of_the_whole_conversation() -> None:
    places = Places()
    for number in range(7):
        places.put(f"messages[{number}]", f"input[{number}]")
    places.leave_out(range(1, 3))
    places.leave_out(range(1, 2))
    own = [places.own(f"messages[{number}].content") for number in range(4)]
    assert own == ["input[0].content", "input[4].content", "input[5].content", "input[6].content"]
