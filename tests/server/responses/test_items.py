"""Items of an input as messages of a chat."""

import base64
from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.responses.items import NOT_DONE, ConversationMessages, items_of
from omnistage.server.responses.places import Places
from omnistage.server.responses.resources import resource_of


def call(number: int = 1) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": "look",
        "arguments": "{}",
    }


def said(number: int = 1) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {"id": f"c{number}", "type": "function", "function": function}


def output(number: int = 1) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": "a fox"}


def messages_of(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    conversation = ConversationMessages(instructions, Places())
    conversation.add_all(items, "input", is_listed=True)
    return conversation.messages


USER = {"role": "user", "content": "Hi"}
ANSWER = {"type": "message", "role": "assistant", "content": "Well"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "a fox"}


def test_a_turn_of_the_model_is_one_message() -> None:
    assert messages_of(USER, THOUGHT, ANSWER, call(1), call(2), output(1), ANSWER) == [
        USER,
        {
            "role": "assistant",
            "content": "Well",
            "reasoning": "Hm",
            "tool_calls": [said(1), said(2)],
        },
        TOOL,
        {"role": "assistant", "content": "Well"},
    ]


def test_calls_without_words_are_a_message_too() -> None:
    assert messages_of(THOUGHT, call(1), output(1), call(2)) == [
        {"role": "assistant", "reasoning": "Hm", "tool_calls": [said(1)]},
        TOOL,
        {"role": "assistant", "tool_calls": [said(2)]},
    ]


def test_a_thought_of_which_nothing_came_is_not_another_turn_s() -> None:
    assert messages_of(THOUGHT, USER, ANSWER)[1] == {"role": "assistant", "content": "Well"}
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]}
    assert messages_of(summary, ANSWER)[0]["reasoning"] == "S"


def test_instructions_come_first() -> None:
    first, second = messages_of(USER, instructions="Be kind.")
    assert first == {"role": "system", "content": "Be kind."}
    assert second == USER


@pytest.mark.parametrize("kind", NOT_DONE)
def test_items_of_tools_that_are_not_here_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ApiError) as refusal:
        messages_of(USER, {"type": kind})
    assert (refusal.value.param, refusal.value.code) == (
        "input[1].type",
        "unsupported_parameter",
    )
    assert kind in refusal.value.message


def data_url(media_type: str, data: bytes = b"x") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"file_data": data_url("audio/wav")}, "audio_url"),
        ({"file_data": data_url("video/mp4")}, "video_url"),
        ({"file_data": data_url("image/png")}, "image_url"),
        ({"file_data": data_url("text/plain", b"\xc3\xa9t\xc3\xa9")}, "text"),
        ({"file_url": "https://a.test/b.mp3?c=d"}, "audio_url"),
        ({"file_url": "https://a.test/b", "filename": "b.png"}, "image_url"),
    ],
)
def test_a_file_is_the_medium_that_it_says(part: dict[str, Any], expected: str) -> None:
    (message,) = messages_of({"role": "user", "content": [{"type": "input_file", **part}]})
    (made,) = message["content"]
    assert made["type"] == expected
    if expected == "text":
        assert made["text"] == "été"
    else:
        assert made[expected]["url"] in part.values()


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"file_data": data_url("application/pdf")}, "file_data"),
        ({"file_url": "https://a.test/b.pdf"}, "file_url"),
        ({"file_id": "file-1"}, "file_id"),
        ({"file_data": data_url("text/plain", b"\xff")}, "file_data"),
        ({"file_data": "data:text/plain,x"}, "file_data"),
        ({}, "file_url"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_cannot_be_read_is_refused(part: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        messages_of({"role": "user", "content": [{"type": "input_file", **part}]})
    assert refusal.value.param == f"input[0].content[0].{param}"


def test_places_of_the_chat_are_told_as_the_client_s() -> None:
    places = Places()
    conversation = ConversationMessages("Be kind.", places)
    conversation.add_all([ANSWER], "previous_response_id", is_listed=False)
    file = {"type": "input_file", "file_data": data_url("audio/wav")}
    turn = {"role": "user", "content": [{"type": "input_text", "text": "x"}, file]}
    conversation.add_all([turn, call(), output()], "input", is_listed=True)
    for chat_place, own in {
        "messages[0].content": "instructions",
        "messages[1].content": "previous_response_id",
        "messages[2].content[0].text": "input[0].content[0].text",
        "messages[2].content[1].audio_url.url": "input[0].content[1]",
        "messages[3].tool_calls": "input[1].tool_calls",
        "messages[4].content[0]": "input[2].output[0]",
        "messages": "input",
        "tools[3].function.parameters": "tools[3].parameters",
        "tool_choice.allowed_tools.tools[1].function.name": "tool_choice.tools[1].name",
        "response_format.json_schema.schema": "text.format.schema",
        "max_completion_tokens": "max_output_tokens",
        "temperature": "temperature",
    }.items():
        assert places.own(chat_place) == own


def test_an_item_is_told_again_in_its_whole_form() -> None:
    told = resource_of({**USER, "id": "mine", "zork": 1})
    assert told == {
        "type": "message",
        "id": "mine",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    (item,) = items_of("Hi")
    assert {**resource_of(item), "id": "mine"} == told
    assert resource_of(ANSWER)["content"][0]["annotations"] == []
    assert resource_of(call())["id"].startswith("fc_")
    assert resource_of(THOUGHT)["summary"] == []
