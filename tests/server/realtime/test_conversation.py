"""Items in their order, what of an answer was heard, and the chat that they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.realtime.conversation import answer, ids, of, text

from omnistage.server.common.errors import ApiError
from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.playout import PlayedAnswer


@pytest.mark.parametrize(
    ("after", "order", "previous"), [(None, "abx", "b"), ("root", "xab", None), ("a", "axb", "a")]
)
def test_an_item_comes_behind_the_one_that_is_named(
    after: str | None, order: str, previous: str | None
) -> None:
    conversation = of("a", "b")
    assert conversation.add(text("x", "x"), after) == previous
    assert ids(conversation) == order


def test_an_item_is_refused_twice_or_behind_none() -> None:
    conversation = of("a")
    with pytest.raises(ApiError) as refused:
        conversation.add(text("a", "a"))
    assert refused.value.code == "item_create_duplicate_item_id"
    with pytest.raises(ApiError, match="names no item"):
        conversation.add(text("b", "b"), "nobody")
    assert ids(conversation) == "a"


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda one: one.get("x"), "item_retrieve_invalid_item_id"),
        (lambda one: one.delete("x"), "item_delete_invalid_item_id"),
        (lambda one: one.truncate("x", 0, 0), "item_truncate_invalid_item_id"),
    ],
)
def test_an_item_that_is_not_there_is_named(act: Any, code: str) -> None:
    with pytest.raises(ApiError, match="the item with id 'x' does not exist") as refused:
        act(of("a"))
    assert refused.value.code == code


def test_the_oldest_items_are_forgotten_and_system_messages_last() -> None:
    conversation = Conversation(max_items=3)
    conversation.add(text("s", "s", "system"))
    for item_id in "abc":
        conversation.add(text(item_id, item_id))
    assert ids(conversation) == "sbc"
    conversation.add(text("r", "r"), "root")
    assert ids(conversation) == "rsc"


def test_bytes_are_bounded() -> None:
    conversation = Conversation(max_bytes=5000)
    for item_id in "abcd":
        conversation.add(text("x" * 1000, item_id))
    assert ids(conversation) == "bcd"
    assert conversation.num_bytes <= 5000
    with pytest.raises(ApiError) as refused:
        conversation.add(text("x" * 6000, "e"))
    assert refused.value.code == "item_too_large"


@pytest.mark.parametrize(
    ("kept", "contexts"),
    [
        (0.8, ["s cdDefFg", "s efFg", "s g"]),
        (0.5, ["s efFg", "s g"]),
        (0.0, ["s g"]),
        (1.0, ["s cdDefFg", "s efFg", "s g"]),
    ],
)
def test_whole_turns_are_left_out_of_a_context(kept: float, contexts: list[str]) -> None:
    """Four turns: two messages of the user are one turn, and answers belong to it."""
    conversation = Conversation()
    conversation.add(text("s", "s", "system"))
    for item_id in "aAcdDefFg":
        role = "assistant" if item_id.isupper() else "user"
        conversation.add(text(item_id, item_id, role))
    found = []
    while conversation.shorten(len, kept * len(conversation.context)):
        found.append("".join(item.id for item in conversation.context).replace("s", "s "))
    assert found == contexts
    assert ids(conversation) == "saAcdDefFg"  # all are still there


def test_a_context_goes_on_where_its_first_item_is_deleted() -> None:
    conversation = Conversation()
    for item_id in "aAbBcCd":
        role = "assistant" if item_id.isupper() else "user"
        conversation.add(text(item_id, item_id, role))
    assert conversation.shorten(len, 3.5)
    assert [item.id for item in conversation.context] == ["c", "C", "d"]
    conversation.delete("c")
    assert [item.id for item in conversation.context] == ["C", "d"]
    conversation.delete("C")
    conversation.delete("d")
    assert [item.id for item in conversation.context] == ["a", "A", "b", "B"]


@pytest.mark.parametrize(
    ("end_ms", "heard"),
    [
        (0, ""),
        (200, ""),
        (300, "One"),
        (600, "One"),
        (700, "One two"),
        (1899, "One two three four"),
        (1900, "One two three four "),
        (1999, "One two three four "),
    ],
)
def test_an_answer_keeps_the_words_that_were_heard(end_ms: int, heard: str) -> None:
    """19 characters in 1.9 s."""
    conversation = Conversation()
    conversation.add(answer("One two three four", 1900))
    conversation.truncate("answer", 0, end_ms)
    assert conversation.get("answer").content[0].words == heard


def test_truncating_again_only_shortens() -> None:
    conversation = Conversation()
    conversation.add(answer("One two three four", 4000))
    conversation.truncate("answer", 0, 1000)
    before = conversation.get("answer").content[0].words
    conversation.truncate("answer", 0, 3000)
    assert conversation.get("answer").content[0].words == before
    assert conversation.get("answer").to_json()["status"] == "incomplete"


@pytest.mark.parametrize(("end_ms", "is_taken"), [(4000, True), (4100, True), (4101, False)])
def test_an_end_a_little_behind_the_length_is_clamped(end_ms: int, is_taken: bool) -> None:
    conversation = Conversation()
    conversation.add(answer("One two", 4000))
    if is_taken:
        conversation.truncate("answer", 0, end_ms)
        assert conversation.get("answer").to_json()["status"] == "completed"
        assert conversation.get("answer").content[0].words == "One two "
    else:
        with pytest.raises(ApiError, match="is already shorter than") as refused:
            conversation.truncate("answer", 0, end_ms)
        assert refused.value.code == "invalid_value"


@pytest.mark.parametrize("index", [0, 1])
def test_only_audio_of_an_answer_can_be_truncated(index: int) -> None:
    with pytest.raises(ApiError, match="content_index names no"):
        of("a").truncate("a", index, 0)


words_of_answers = st.lists(st.text("ab c日本。", max_size=8), max_size=20)


@given(words_of_answers, st.floats(1, 10_000), st.floats(0, 1))
def test_what_was_heard_is_a_prefix_and_never_grows(
    pieces: list[str], ms: float, fraction: float
) -> None:
    spoken = PlayedAnswer(list(pieces), ms)
    whole = spoken.words
    spoken.truncate(ms * fraction)
    heard = spoken.words
    assert whole.startswith(heard)
    spoken.truncate(ms * fraction / 2)
    assert heard.startswith(spoken.words)
    spoken.truncate(0)
    assert spoken.words == ""


def test_words_without_spaces_are_cut_anywhere() -> None:
    spoken = PlayedAnswer(["これは日本語です"], 800)
    spoken.truncate(450)
    assert spoken.words == "これは日"
