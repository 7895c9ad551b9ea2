"""Calls that must be made follow their schemas, whatever the tool says of `strict`."""

import json
from typing import Any

import httpx
import pytest
from support.api.doors import CALLING, CHAT, NO_SPACE, ONE_SHOT, ask
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

USER = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LOOK = {
    "type": "object",
    "properties": {"at": {"oneOf": [{"const": "left"}, {"const": 1}]}},
    "required": ["at"],
    "additionalProperties": False,
}
# Nothing that llguidance can follow.
NOT = {"type": "object", "properties": {"a": {"not": {"const": 1}}}, "required": ["a"]}
NAMED: Any = {"type": "function", "function": {"name": "user"}}


def tool(name: str, schema: Any, strict: bool | None = None) -> dict[str, Any]:
    function = {"name": name, "parameters": schema}
    more = {} if strict is None else {"strict": strict}
    return {"type": "function", "function": {**function, **more}}


def assert_follows(name: str, arguments: str) -> None:
    given = json.loads(arguments)
    if name == "look":
        assert given in ({"at": "left"}, {"at": 1})
        return
    assert name == "user"
    assert given.keys() == {"name", "age", "tags"}
    assert given["name"] in ("Ann", "Bob")
    assert given["age"] in range(1, 10)
    assert 1 <= len(given["tags"]) <= 2
    assert set(given["tags"]) <= {"x", "y"}


@pytest.mark.parametrize(("path", "stream"), CALLING)
@pytest.mark.parametrize("strict", [None, False, True])
@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_a_forced_call_follows_its_schema(
    choice: Any, strict: bool | None, path: str, stream: bool, server: TinyServer
) -> None:
    tools = [tool("user", USER, strict), tool("look", LOOK, strict)]
    more: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": False}
    answered = ask(server.url, path, stream, tools=tools, **more)
    assert (answered.status, answered.error) == (200, None)
    (call,) = answered.calls
    assert choice == "required" or call[0] == "user"
    assert_follows(*call)


@pytest.mark.parametrize(("path", "stream"), CALLING)
def test_all_of_several_forced_calls_follow_their_schema(
    path: str, stream: bool, server: TinyServer
) -> None:
    tools = [tool("look", LOOK), tool("user", USER)]
    answered = ask(server.url, path, stream, 400, tools=tools, tool_choice="required", seed=5)
    assert (answered.status, answered.error) == (200, None)
    assert answered.calls
    for name, arguments in answered.calls:
        assert_follows(name, arguments)


def test_of_tools_that_may_be_called_alone_the_call_follows_its_schema(server: TinyServer) -> None:
    allowed = {"mode": "required", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    tools = [tool("look", LOOK), tool("user", USER)]
    more: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": False}
    answered = ask(server.url, CHAT, False, tools=tools, **more)
    ((name, arguments),) = answered.calls
    assert name == "user"
    assert_follows(name, arguments)


@pytest.mark.parametrize(("path", "stream"), CALLING)
@pytest.mark.parametrize("strict", [None, False, True])
def test_a_schema_that_no_grammar_follows_is_a_400_that_names_its_tool(
    strict: bool | None, path: str, stream: bool, server: TinyServer
) -> None:
    tools = [tool("look", LOOK), tool("user", NOT, strict)]
    answered = ask(server.url, path, stream, tools=tools, tool_choice="required")
    assert answered.status == 400
    assert answered.error is not None
    assert answered.error["param"] == "tools"
    assert answered.error["message"].startswith("Grammar error: the parameters of user: ")
    assert len(answered.error["message"]) < 300
    # What is not called is not looked at, and a call that may be made is free.
    named = {"type": "function", "function": {"name": "look"}}
    ((name, arguments),) = ask(server.url, path, stream, tools=tools, tool_choice=named).calls
    assert_follows(name, arguments)
    if strict is not True:
        assert ask(server.url, path, stream, tools=tools, tool_choice="auto").status == 200


def test_a_refused_call_is_blamed_on_the_tools_and_not_on_the_format(server: TinyServer) -> None:
    answered = ask(
        *(server.url, CHAT, False),
        tools=[tool("user", NOT)],
        tool_choice=NAMED,
        response_format={"type": "json_object"},
    )
    assert answered.error is not None
    assert (answered.status, answered.error["param"]) == (400, "tools")


@pytest.mark.parametrize(("strict", "parallel"), [(True, None), (True, False), (None, False)])
def test_a_call_that_may_be_made_follows_its_schema_if_it_is_strict(
    strict: bool | None, parallel: bool | None, server: TinyServer
) -> None:
    """The tiny model never calls by itself: it is made to begin calls, whenever it may."""
    with httpx.Client(base_url=server.url, limits=ONE_SHOT) as client:
        (begin,) = client.post("/tokenize", json={"prompt": "<tool_call>"}).json()["tokens"]
    more: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
    tools = [tool("look", LOOK, strict)]
    bias = {**NO_SPACE, str(begin): 100}
    answered = ask(server.url, CHAT, False, tools=tools, logit_bias=bias, **more)
    assert (answered.status, answered.error) == (200, None)
    if parallel is False:
        assert len(answered.calls) == 1
    if strict:
        assert_follows(*answered.calls[0])
