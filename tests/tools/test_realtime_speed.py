"""The judgement of `make realtime-speed`: how far a session's text is from the chat's."""

from typing import Any

import pytest
from realtime_texts import gap_of


def token(text: str, logprob: float, *others: tuple[str, float]) -> dict[str, Any]:
    """A token of a chat, and the likeliest ones in its place."""
    top = [{"token": text, "logprob": logprob, "bytes": list(text.encode())}]
    top += [{"token": one, "logprob": low, "bytes": list(one.encode())} for one, low in others]
    return {**top[0], "top_logprobs": top}


CHAT = [
    token("<|im_end|>", -0.1),
    token("the", -0.5, ("a", -0.7)),
    token(" sea", -1.0, (" sky", -1.25), (" s", -4.0)),
]


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("the sea", 0.0),
        ("the sky above", 0.25),
        ("a sea", 0.2),
        ("the sun", 3.0),
        ("the fog", float("inf")),
        ("the sea is", float("inf")),  # it goes on where the chat has ended
        ("the", float("inf")),
    ],
)
def test_a_text_is_as_far_as_its_first_other_token(text: str, gap: float) -> None:
    assert gap_of(text, "the sea", CHAT) == pytest.approx(gap)


def test_a_byte_that_is_no_letter_is_in_the_text_as_its_replacement() -> None:
    byte = {**token("\ufffd", -0.5), "bytes": [0x80]}
    chat = [*CHAT[:2], {**byte, "top_logprobs": [byte]}, CHAT[2]]
    assert gap_of("the\ufffd sea", "the\ufffd sea", chat) == 0
    assert gap_of("the\ufffd sky", "the\ufffd sea", chat) == pytest.approx(0.25)


def test_a_chat_that_ends_earlier_judges_the_beginning_of_a_text() -> None:
    assert gap_of("the sea is", "the sea", CHAT, is_part=True) == 0
    assert gap_of("the sky is", "the sea", CHAT, is_part=True) == pytest.approx(0.25)
