"""Grammars with letters taken apart, which Qwen's tokenizer joins: answered, at every endpoint.

Names of files on a Mac are such, and texts in Vietnamese or Hangul may be.
"""

import json
from typing import Any

import pytest
from support.api.doors import CALLING, DOORS, ask
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

ACCENT = "e\u0301"
VIETNAMESE = "Vie\u0323\u0302t"
HANGUL = "\u1112\u1161\u11ab"


def named(name: str, value: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"const": value}},
        "required": [name],
        "additionalProperties": False,
    }


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    described = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def outputs(**constraint: Any) -> dict[str, Any]:
    return {"structured_outputs": constraint}


# What an answer must look like, and the texts of which it is one.
FORMS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "choice": (outputs(choice=[VIETNAMESE, HANGUL]), {VIETNAMESE, HANGUL}),
    "choice of one": (outputs(choice=["\u212b"]), {"\u212b"}),
    "regex": (outputs(regex=f"{VIETNAMESE}[12]"), {f"{VIETNAMESE}1", f"{VIETNAMESE}2"}),
    "regex of an escape": (outputs(regex="e\\u0301x"), {f"{ACCENT}x"}),
    "regex of a class": (outputs(regex="[e]\u0301"), {ACCENT}),
    "json": (outputs(json={"const": HANGUL}), {f'"{HANGUL}"'}),
    "const": (formatted({"const": ACCENT}), {f'"{ACCENT}"'}),
    "enum": (formatted({"enum": [ACCENT, HANGUL]}), {f'"{ACCENT}"', f'"{HANGUL}"'}),
    "name": (formatted(named(VIETNAMESE, 1)), {f'{{"{VIETNAMESE}":1}}'}),
    "value": (formatted(named("a", [HANGUL])), {f'{{"a":["{HANGUL}"]}}'}),
    "pattern": (formatted({"type": "string", "pattern": f"^{ACCENT}$"}), {f'"{ACCENT}"'}),
}


@pytest.mark.parametrize(("path", "stream"), DOORS)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_has_the_letters_of_its_grammar(
    form: str, path: str, stream: bool, server: TinyServer
) -> None:
    fields, texts = FORMS[form]
    answered = ask(server.url, path, stream, **fields)
    assert (answered.status, answered.error) == (200, None)
    assert answered.text in texts


@pytest.mark.parametrize(("path", "stream"), CALLING)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "go"}}])
def test_arguments_have_the_letters_of_their_schema(
    choice: Any, path: str, stream: bool, server: TinyServer
) -> None:
    function = {"name": "go", "parameters": named(VIETNAMESE, ACCENT)}
    tools = [{"type": "function", "function": function}]
    more = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answered = ask(server.url, path, stream, **more)
    assert (answered.status, answered.error) == (200, None)
    ((name, arguments),) = answered.calls
    assert (name, json.loads(arguments)) == ("go", {VIETNAMESE: ACCENT})
