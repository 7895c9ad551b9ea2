"""Grammars to the real server: ordinary ones are served, others are a 400 that says why."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.hostile.dear_bodies import CHAT, chat
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

NUM_HEAVY = 4  # a second or two of a processor each


@pytest.fixture
async def http(server: TinyServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"content-type": "application/json"}
    options: dict[str, Any] = {"limits": ONE_SHOT, "timeout": 120, "headers": headers}
    async with httpx.AsyncClient(base_url=server.url, **options) as client:
        yield client


def generations(server: TinyServer) -> dict[str, int]:
    return {name: stage["generation"] for name, stage in server.health().items()}


def schema(described: Any, **more: Any) -> bytes:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": described}}
    return chat(response_format=given, **more)


def heavy(number: int) -> bytes:
    """Patterns that hold a compiler up for longer than anybody waits, none the same."""
    ends = [f"(a|b)*{'ab'[one % 2]}(a|b){{{one + 10 + number}}}$" for one in range(200)]
    return schema({"type": "string", "allOf": [{"pattern": end} for end in ends]})


@pytest.mark.parametrize("pattern", ["[a-z]{1,200}", "[0-9]{129}", "(ab){1,1000}", "x{5000}"])
async def test_a_pattern_that_counts_beyond_128_is_served(
    pattern: str, http: httpx.AsyncClient
) -> None:
    for described in (
        {"type": "string", "pattern": f"^{pattern}$"},
        {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": f"^{pattern}$"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ):
        body = schema(described, max_completion_tokens=300, temperature=0)
        response = await http.post(CHAT, content=body)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        if choice["finish_reason"] == "stop":
            made = json.loads(choice["message"]["content"])
            assert re.fullmatch(pattern, made if isinstance(made, str) else made["a"])
    response = await http.post(CHAT, content=chat(structured_outputs={"regex": pattern}))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (heavy(0), "response_format", "too long to compile"),
        (
            chat(structured_outputs={"regex": "(([a-z]{1,20}){1,20}){1,20}"}),
            "structured_outputs",
            "too many expressions",
        ),
        (
            schema({"type": "object", "properties": {f"p{one}": {} for one in range(1900)}}),
            "response_format",
            "",
        ),
        (schema({"type": "string", "pattern": r"(a)\1"}), "response_format", "backreferences"),
        (schema({"enum": ["<tool_call>"]}), "response_format", "spells <tool_call>"),
    ],
    ids=[
        *("heavy patterns", "nested counts", "1,900 optional properties", "a backreference"),
        "a token of the model",
    ],
)
async def test_a_grammar_that_the_engine_cannot_take_is_a_400_that_says_why(
    body: bytes, param: str, words: str, http: httpx.AsyncClient
) -> None:
    response = await http.post(CHAT, content=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith("Grammar error")
    assert words in error["message"]
    assert len(response.content) < 2048


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        ({"structured_outputs": {"choice": ["yes"]}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=["a choice", "JSON"],
)
@pytest.mark.parametrize(
    "forbidding", [{"allowed_token_ids": [0]}, {"bad_words": ["y", "ye", "yes", "{", '{"']}]
)
async def test_fields_that_leave_a_grammar_no_token_are_a_400_that_names_them(
    asked: dict[str, Any], grammar: str, forbidding: dict[str, Any], http: httpx.AsyncClient
) -> None:
    response = await http.post(CHAT, content=chat(**asked, **forbidding))
    assert response.status_code == 400, response.text
    (name,) = forbidding
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "invalid_value")
    assert f"{name} leaves no token that {grammar} allows" in error["message"]


async def test_a_choice_may_spell_a_token_of_the_model(http: httpx.AsyncClient) -> None:
    body = chat(structured_outputs={"choice": ["<tool_call>a", "<think>b"]})
    response = await http.post(CHAT, content=body)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["finish_reason"] == "stop"


async def test_heavy_schemas_at_once_are_refused_and_others_are_answered_meanwhile(
    server: TinyServer, http: httpx.AsyncClient
) -> None:
    before = generations(server)
    num_late = 0
    while not await is_answered_beside_heavy_ones(http):
        num_late += 1
        assert num_late < 3  # a machine that stalls once does not decide
    assert before == generations(server)


async def is_answered_beside_heavy_ones(http: httpx.AsyncClient) -> bool:
    """Whether a chat has its answer while heavy schemas, which are refused, are looked at."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(http.post(CHAT, content=heavy(number + 1)))
            for number in range(NUM_HEAVY)
        ]
        meanwhile = [await http.post(CHAT, content=chat())]
        was_beside = not all(task.done() for task in tasks)
        meanwhile += [await http.post(CHAT, content=chat()) for _ in range(4)]
    assert [response.status_code for response in meanwhile] == [200] * 5
    assert [task.result().status_code for task in tasks] == [400] * NUM_HEAVY
    return was_beside
