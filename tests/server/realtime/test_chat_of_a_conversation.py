"""Items of a conversation as a chat has them, and items that are refused."""

import base64
import itertools
from typing import Any

import numpy as np
import pytest
from support.realtime.conversation import answer, of, text

from omnistage.server.common.errors import ApiError
from omnistage.server.realtime.conversation import messages_of
from omnistage.server.realtime.items import Item, item_of

PNG = "data:image/png;base64,iVBORw0KGgo="


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
