"""Items in their order, what of an answer was heard, and the chat that they are."""

import base64
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.server.common.errors import ApiError
from omnistage.server.realtime.conversation import Conversation, messages_of
from omnistage.server.realtime.items import Item, Part, item_of
from omnistage.server.realtime.playout import PlayedAnswer

PNG = "data:image/png;base64,iVBORw0KGgo="


def text(words: str, item_id: str, role: str = "user") -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": words}]
    return item_of({"id": item_id, "role": role, "content": content}, "audio/pcm")


def of(*ids: str, **bounds: int) -> Conversation:
    conversation = Conversation(**bounds)
    for item_id in ids:
        conversation.add(text(item_id, item_id))
    return conversation


def ids(conversation: Conversation) -> str:
    return "".join(item.id for item in conversation)


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


def answer(words: str, ms: float, item_id: str = "answer") -> Item:
    pieces = [piece + " " for piece in words.split()] or [words]
    spoken = PlayedAnswer(pieces, ms)
    return Item(item_id, role="assistant", content=[Part("output_audio", spoken=spoken)])


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


# Chats


def test_items_become_the_messages_of_a_chat() -> None:
    conversation = of("Hi")
    samples = np.arange(2400, dtype="<i2").tobytes()
    audio = {"type": "input_audio", "audio": base64.b64encode(samples).decode()}
    image = {"type": "input_image", "image_url": PNG, "detail": "high"}
    given: list[Any] = [
        {"type": "message", "role": "user", "content": [audio, image]},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_audio"}]},
    ]
    for one in given:
        conversation.add(item_of(one, "audio/pcm"))
    conversation.add(answer("It is sunny", 1000))
    conversation.truncate("answer", 0, 500)
    messages = messages_of(conversation, "Be short.")
    audio_given = messages[2]["content"][0]["input_audio"]
    assert audio_given.samples.tobytes() == samples
    assert audio_given.rate_hz == 24_000
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}
    said = [{"type": "text", "text": "Yes."}]
    assert [one["role"] for one in messages] == [
        *("system", "user", "user", "assistant", "tool", "assistant")
    ]
    assert messages[0]["content"] == "Be short."
    assert messages[2]["content"][1] == {"type": "image_url", "image_url": {"url": PNG}}
    assert messages[3] == {"role": "assistant", "content": said, "tool_calls": [call]}
    assert messages[4] == {"role": "tool", "tool_call_id": "call_1", "content": "sun"}
    assert messages[5]["content"] == [{"type": "text", "text": "It is"}]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ('{"a": ', "{}"),
        ("5", "{}"),
        ("[" * 100_000, "{}"),
    ],
)
def test_arguments_that_no_chat_takes_do_not_spoil_it(arguments: str, given: str) -> None:
    call = {"type": "function_call", "name": "look", "arguments": arguments}
    item = item_of(call, "audio/pcm")
    assert item.to_json()["arguments"] == arguments
    ((message,),) = [messages_of([item], "")]
    assert message["tool_calls"][0]["function"]["arguments"] == given


def test_a_call_that_was_cut_is_no_part_of_a_chat() -> None:
    item = Item("a", "function_call", "incomplete", call_id="c", name="look", text='{"a": ')
    assert [one["role"] for one in messages_of([item, text("Hi", "b")], "")] == ["user"]


def test_a_chat_is_never_empty() -> None:
    assert messages_of([], "") == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"type": "mcp_call"}, "item.type"),
        ({"type": "other"}, "item.type"),
        ({"type": ["message"]}, "item.type"),
        ({"role": "tool", "content": []}, "item.role"),
        (
            {"role": "user", "content": [{"type": "output_text", "text": ""}]},
            "item.content[0].type",
        ),
        ({"role": "system", "content": [{"type": "input_audio"}]}, "item.content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "item.content[0].text"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "item.content[0].audio"),
        (
            {"role": "user", "content": [{"type": "input_audio", "audio": "AA=="}]},
            "item.content[0]",
        ),
        ({"role": "user", "content": [{"type": "input_audio", "audio": "?"}]}, "item.content[0]"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "item.content[0].image_url"),
        ({"role": "user", "content": ["x"]}, "item.content[0]"),
        ({"role": "user", "content": "x"}, "item.content"),
        ({"id": "", "role": "user"}, "item.id"),
        ({"type": "function_call", "name": "a"}, "item.arguments"),
        ({"type": "function_call", "name": "", "arguments": ""}, "item.name"),
        ({"type": "function_call_output", "output": ""}, "item.call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": 5}, "item.output"),
    ],
)
def test_a_wrong_item_is_refused_by_its_place(given: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as refused:
        item_of(given, "audio/pcm")
    assert (refused.value.param or "").startswith(place)


def test_keys_are_left_out_rather_than_null() -> None:
    told = [text("x", "a").to_json(), answer("x", 1).to_json()]
    told.append(
        item_of({"type": "function_call", "name": "a", "arguments": ""}, "audio/pcm").to_json()
    )
    for one in told:
        values = [*one.values(), *itertools.chain(*(p.values() for p in one.get("content", ())))]
        assert None not in values
    heard = item_of(
        {"role": "user", "content": [{"type": "input_audio", "audio": "AAA="}]}, "audio/pcm"
    )
    assert heard.to_json()["content"] == [{"type": "input_audio", "transcript": None}]
    assert heard.to_json(has_media=True)["content"][0]["audio"] == "AAA="
