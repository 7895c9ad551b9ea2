"""Responses and tokens over the real server, through OpenAI's own client in strict mode."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import Response
from support.api.openai_answers import ask_whole
from support.api.openai_spec import assert_valid
from support.api.prompts import PICTURE, SHORT, image_part, sound_part, text
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

LOOK: Any = {
    "type": "function",
    "name": "look",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"again": {"type": "boolean"}},
        "required": ["again"],
        "additionalProperties": False,
    },
}
NO_SPACE = {str(byte): -100 for byte in b"\t\n\r "}


@pytest.fixture
def greedy(server: TinyServer) -> dict[str, Any]:
    return {"model": server.model, "temperature": 0, "max_output_tokens": 16}


def ask(client: OpenAI, **asked: Any) -> Response:
    """One response, whole and streamed, which are equal; its JSON is checked."""
    raw = client.responses.with_raw_response.create(**asked)
    assert_valid(json.loads(raw.text), "Response", "responses")
    whole: Response = raw.parse()
    with client.responses.create(**asked, stream=True) as stream:
        events = list(stream)
    *_, last = events
    assert last.type in ("response.completed", "response.incomplete")
    streamed = last.response
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output_text == whole.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    return whole


def test_a_response_is_the_chat_that_it_stands_for(client: OpenAI, greedy: dict[str, Any]) -> None:
    response = ask(client, **greedy, input="Hello", instructions="Be kind.")
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    chat = ask_whole(client, model=greedy["model"], temperature=0, max_tokens=16, messages=messages)
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, chat.choices[0].finish_reason) == ("incomplete", "length")
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens == 16


def test_a_call_and_its_result_in_the_next_response(client: OpenAI, greedy: dict[str, Any]) -> None:
    asked = {**greedy, "max_output_tokens": 200, "tools": [LOOK]}
    first = ask(
        client,
        **asked,
        input="Hello",
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        extra_body={"logit_bias": NO_SPACE},
    )
    (call,) = first.output
    assert call.type == "function_call"
    assert isinstance(json.loads(call.arguments)["again"], bool)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a fox"}
    second = ask(
        client,
        **{**asked, "max_output_tokens": 1},
        input=[result],
        previous_response_id=first.id,
        tool_choice="none",
    )
    alone = ask(client, **{**asked, "max_output_tokens": 1}, input="Hello", tool_choice="none")
    assert first.usage is not None
    assert second.usage is not None
    assert alone.usage is not None
    more = second.usage.input_tokens - alone.usage.input_tokens
    assert more > len("a fox") + len(call.arguments)


def test_a_schema_and_media(client: OpenAI, greedy: dict[str, Any]) -> None:
    picture = image_part(PICTURE)["image_url"]["url"]
    sound = sound_part(SHORT)["input_audio"]
    parts = [
        {"type": "input_image", "image_url": picture, "detail": "auto"},
        {"type": "input_audio", "input_audio": sound},
        {"type": "input_text", "text": "What?"},
    ]
    form = {"type": "json_schema", "name": "look", "schema": LOOK["parameters"], "strict": True}
    response = ask(
        client,
        **{**greedy, "max_output_tokens": 60},
        input=[{"role": "user", "content": parts}],
        text={"format": form},
        extra_body={"logit_bias": NO_SPACE},
    )
    assert isinstance(json.loads(response.output_text)["again"], bool)
    messages = [
        {"role": "user", "content": [image_part(PICTURE), sound_part(SHORT), text("What?")]}
    ]
    chat = ask_whole(client, model=greedy["model"], max_tokens=1, messages=messages)
    assert chat.usage is not None
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens


def test_tokens_are_those_that_a_chat_of_the_same_messages_begins_with(
    client: OpenAI, server: TinyServer
) -> None:
    parts = [image_part(PICTURE), sound_part(SHORT), text("What?")]
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}]
    completion = ask_whole(
        client,
        model=server.model,
        max_tokens=1,
        messages=messages,
        extra_body={"return_token_ids": True},
    )
    expected = completion.model_dump()["prompt_token_ids"]
    asked = {"messages": messages, "return_token_strs": True}
    told = httpx.post(f"{server.url}/tokenize", json=asked, timeout=600).json()
    assert told["tokens"] == expected
    assert told["count"] == len(expected) == len(told["token_strs"])
    assert told["max_model_len"] > len(expected)
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": told["tokens"]}, timeout=600)
    assert "What?<|im_end|>" in back.json()["prompt"]
    marked = {"role": "user", "content": [*parts, text("<|image_pad|>")]}
    refusal = httpx.post(f"{server.url}/tokenize", json={"messages": [marked]}, timeout=600)
    assert refusal.json()["error"]["param"] == "messages[0].content[3].text"
