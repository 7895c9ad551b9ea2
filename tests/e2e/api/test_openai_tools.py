"""Tools over OpenAI's own client: calls that are forced, chosen, parsed and answered."""

import json
from typing import Any

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel
from support.api.openai_answers import ask, ask_whole
from support.api.openai_chats import HELLO, NO_SPACE, SPOKEN, Go, Look, usage_of
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine
TOOLS: Any = [pydantic_function_tool(Look), pydantic_function_tool(Go)]


@pytest.fixture
def greedy(server: TinyServer) -> dict[str, Any]:
    return {"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 16}


def forced(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def allowed(name: str, mode: str) -> Any:
    tools = {"mode": mode, "tools": [forced(name)]}
    return {"type": "allowed_tools", "allowed_tools": tools}


@pytest.fixture
def with_tools(greedy: dict[str, Any]) -> dict[str, Any]:
    return {**greedy, "max_tokens": 200, "tools": TOOLS, "logit_bias": NO_SPACE}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("required", None),
        (forced("Look"), "Look"),
        (forced("Go"), "Go"),
        (allowed("Go", "required"), "Go"),
        (allowed("Look", "required"), "Look"),
    ],
)
def test_a_forced_call(
    choice: Any, name: str | None, client: OpenAI, with_tools: dict[str, Any]
) -> None:
    answers = ask(client, **with_tools, tool_choice=choice, parallel_tool_calls=False)
    calls = []
    for completion in (answers.whole, answers.helped):
        message = completion.choices[0].message
        assert not message.content
        (call,) = message.tool_calls or []
        assert call.type == "function"
        assert name in (None, call.function.name)
        model: type[BaseModel] = Look if call.function.name == "Look" else Go
        model.model_validate_json(call.function.arguments, strict=True)
        calls.append((call.function.name, json.loads(call.function.arguments)))
    assert calls[0] == calls[1]


def test_the_client_parses_a_call(client: OpenAI, with_tools: dict[str, Any]) -> None:
    completion = client.chat.completions.parse(
        **with_tools, tool_choice=forced("Look"), parallel_tool_calls=False
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Look)


CALL = r'<tool_call>\n\{"name": "Look", "arguments": \{"at": "(left|right)", "again": true\}\}\n'
CALL += "</tool_call>"


def test_calls_that_the_model_chooses(client: OpenAI, with_tools: dict[str, Any]) -> None:
    """The tiny model never calls by itself: a pattern makes it write what a model would."""
    pattern = {"structured_outputs": {"regex": f"Well, {CALL}\\n{CALL}"}}
    answers = ask(client, **{**with_tools, "logit_bias": None}, extra_body=pattern)
    assert answers.finish_reasons == ["tool_calls"] * 3
    for completion in (answers.whole, answers.helped):
        message = completion.choices[0].message
        assert (message.content or "").strip() == "Well,"
        calls = message.tool_calls or []
        assert [call.type == "function" and call.function.name for call in calls] == ["Look"] * 2
        assert len({call.id for call in calls}) == 2


def test_tools_that_are_not_called(client: OpenAI, greedy: dict[str, Any]) -> None:
    words = {"structured_outputs": {"choice": ["yes", "no"]}}
    answers = ask(client, **greedy, tools=TOOLS, tool_choice="none", extra_body=words)
    assert len(set(answers.texts)) == 1
    assert not answers.whole.choices[0].message.tool_calls


def test_a_call_and_its_result_go_back(client: OpenAI, with_tools: dict[str, Any]) -> None:
    called = ask_whole(client, **with_tools, tool_choice=forced("Look")).choices[0].message
    (call,) = called.tool_calls or []
    assert call.type == "function"
    result = {"role": "tool", "tool_call_id": call.id, "content": "a fox"}
    messages = [*HELLO, called.model_dump(), result]
    lengths = [
        usage_of(ask_whole(client, **{**with_tools, "messages": asked, "max_tokens": 1}))
        for asked in (HELLO, messages)
    ]
    more = lengths[1]["prompt_tokens"] - lengths[0]["prompt_tokens"]
    assert more > len("a fox") + len(call.function.arguments)


def test_a_call_makes_no_sound(client: OpenAI, with_tools: dict[str, Any]) -> None:
    answers = ask(client, **with_tools, **SPOKEN, tool_choice=forced("Go"))
    message = answers.whole.choices[0].message
    assert message.tool_calls
    assert message.audio is not None
    assert (message.audio.data, message.audio.transcript) == ("", "")
    assert usage_of(answers.whole)["completion_tokens_details"]["audio_tokens"] == 0
