"""The embedded model's answers are right: to texts, with tools, in JSON, and many at once."""

import asyncio
import json
from typing import Any

import pytest
from language.tools import WEATHER
from support.oracles.meaning import SmallServer, chat_body

pytestmark = pytest.mark.engine

ANSWERS = {
    "What is seven plus five?": "Seven plus five is twelve.",
    "How much is 9 minus 4?": "Nine minus four is five.",
    "Which day comes after Monday?": "Tuesday comes after Monday.",
    "Which month comes before June?": "May comes before June.",
    "What does a cow say?": "A cow says moo.",
    "What does a duck say?": "A duck says quack.",
    "Where does a lion live?": "A lion lives in the grass.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What color is a banana?": "The banana is yellow.",
    "What is the opposite of big?": "The opposite of big is small.",
    "Count from three to seven.": "Three, four, five, six, seven.",
    "Hello!": "Hello! How can I help you?",
    "Thank you!": "You are welcome.",
    "Who are you?": "I am Small, a toy model. I can talk, listen, see and draw.",
    "Tell me a story about a dog in the garden.": "Once there was a little dog in the garden. "
    "It said woof all day. Then it went home and slept.",
}
SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}


async def test_sixteen_at_once_get_each_its_own_answer(small: SmallServer) -> None:
    """Half of them streamed; each ends by itself."""
    assert len(ANSWERS) == 16

    async def ask(question: str, is_streamed: bool) -> str:
        async with small.client() as client:
            body = chat_body(question, stream=is_streamed)
            reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        if not is_streamed:
            (choice,) = reply.json()["choices"]
            assert choice["finish_reason"] == "stop"
            return str(choice["message"]["content"])
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        choices = [json.loads(line)["choices"][0] for line in lines if line != "[DONE]"]
        assert choices[-1]["finish_reason"] == "stop"
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    asked = [ask(question, bool(number % 2)) for number, question in enumerate(ANSWERS)]
    answers = dict(zip(ANSWERS, await asyncio.gather(*asked), strict=True))
    assert answers == ANSWERS


def test_a_name_is_remembered(small: SmallServer) -> None:
    turns = ("My name is Clara.", "Nice to meet you, Clara.", "What is my name?")
    assert small.answer(*turns) == "Your name is Clara."
    other = ("My name is Ben.", "Nice to meet you, Ben.", "What is my name?")
    assert small.answer(*other) == "Your name is Ben."


def test_a_tool_is_called_and_its_result_is_read_out(small: SmallServer) -> None:
    asked = "What is the weather in Paris?"
    choice = small.chat(asked, tools=[WEATHER])
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny, 21 degrees"}
    turns: list[Any] = [asked, choice["message"], result]
    said = small.answer(*turns, tools=[WEATHER])
    assert said == "It is sunny in Paris, with twenty one degrees."


def test_json_follows_its_schema_and_is_right(small: SmallServer) -> None:
    form = {"name": "capital", "strict": True, "schema": SCHEMA}
    more = {"response_format": {"type": "json_schema", "json_schema": form}}
    asked = "Answer in JSON with country and capital: the capital of Italy."
    assert json.loads(small.answer(asked, **more)) == {"country": "Italy", "capital": "Rome"}
