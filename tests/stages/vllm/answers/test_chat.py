"""How the end of vLLM's stream is read: whole, failed, or cut short."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnistage.stages.vllm.answers.chat import LOST, ChatServing
from omnistage.stages.vllm.answers.rendering import Rendering
from omnistage.stages.worker.failure import RequestError

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
WORD = {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 1}}
DONE = "[DONE]"


class ScriptedServing:
    """Stands for vLLM's class: its stream has these lines."""

    def __init__(self, lines: list[Any]) -> None:
        self._lines = lines

    async def create_chat_completion(self, _: Any, __: Any) -> AsyncIterator[str]:
        async def lines() -> AsyncIterator[str]:
            for line in self._lines:
                yield f"data: {line if line == DONE else json.dumps(line)}\n\n"

        return lines()


async def chunks(lines: list[Any], **fields: Any) -> list[Any]:
    chat = ChatServing.__new__(ChatServing)
    chat._chat = ScriptedServing(lines)  # type: ignore[assignment]
    chat._rendering = Rendering.__new__(Rendering)
    chat._name = "some/model"
    chat._has_adapters_on_cpu = False
    return [chunk async for chunk in chat.stream("r", {**BODY, **fields})]


async def test_a_whole_stream_ends_after_its_usage() -> None:
    assert await chunks([WORD, USAGE, DONE]) == [WORD, USAGE]


@pytest.mark.parametrize("lines", [[], [DONE], [WORD], [WORD, DONE]])
async def test_a_stream_without_its_usage_is_a_failure(lines: list[Any]) -> None:
    with pytest.raises(RequestError, match="before its usage") as caught:
        await chunks(lines)
    assert caught.value.status == 500


async def test_an_error_in_the_stream_keeps_its_status() -> None:
    error = {"error": {"message": "no memory", "code": 500, "param": None}}
    with pytest.raises(RequestError, match="no memory") as caught:
        await chunks([WORD, error, DONE])
    assert caught.value.status == 500


FORMAT = {"response_format": {"type": "json_object"}}
ENDED = {"error": {"message": LOST, "code": 500, "param": None}}


@pytest.mark.parametrize("before", [[], [{"choices": [{"index": 0, "token_ids": [7]}]}]])
@pytest.mark.parametrize("forbidding", [{"allowed_token_ids": [5]}, {"bad_words": ["a"]}])
async def test_an_answer_without_a_token_left_by_its_grammar_is_refused_by_the_field(
    before: list[Any], forbidding: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as caught:
        await chunks([*before, ENDED, DONE], **FORMAT, **forbidding)
    (name,) = forbidding
    assert (caught.value.status, caught.value.param) == (400, name)
    assert caught.value.message == f"{name} leaves no token that response_format allows"


@pytest.mark.parametrize("fields", [{}, FORMAT, {"bad_words": ["a"]}])
async def test_an_answer_that_the_engine_ends_by_itself_is_its_failure(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(RequestError) as caught:
        await chunks([WORD, ENDED, DONE], **fields)
    assert (caught.value.status, caught.value.param) == (500, None)
