"""Which grammars are judged to be too much for an engine, and how that is told."""

import asyncio
import json
import resource
from typing import Any

import psutil
import pytest

pytest.importorskip("vllm")

from omnistage.stages.vllm.compat import GrammarRefused, StructuredOutputsParams
from omnistage.stages.vllm.grammars.grammar_judge import SCHEMA, problem_of
from omnistage.stages.vllm.grammars.grammars import Grammars, constraint_of

ENDS = [f"(a|b)*{'ab'[one % 2]}(a|b){{{one + 10}}}$" for one in range(200)]
HEAVY = {"type": "string", "allOf": [{"pattern": end} for end in ENDS]}
MANY = {"type": "object", "properties": {f"p{one}": {"type": "string"} for one in range(900)}}


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


@pytest.mark.parametrize(
    "schema",
    [
        text("^[a-z]{1,128}$"),
        text("^[a-z]{1,200}$"),
        text("^a{5000}$"),
        text("^(abc){1,3000}$"),
        text("(a+)+b"),
        {"enum": [f"{number:05d}" for number in range(7000)]},
        {"type": "object", "properties": {"a": text("^[0-9]{200}$")}, "required": ["a"]},
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}}},
        {"type": "array", "minItems": 4000, "maxItems": 4096, "items": {"type": "integer"}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_ordinary_schemas_pass(schema: Any) -> None:
    assert problem_of(SCHEMA, json.dumps(schema)) == ""


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (SCHEMA, json.dumps(text(r"^(a)\1$")), "backreferences are not supported"),
        (SCHEMA, json.dumps(MANY), "max is 2000"),
        (SCHEMA, json.dumps({"not": {}}), "not"),
        ("regex", "^(([a-z]{1,20}){1,20}){1,20}$", "too many expressions"),
        ("regex", "(", "regex parse error"),
    ],
)
def test_what_the_engine_cannot_take_is_named(kind: Any, given: str, words: str) -> None:
    assert words in problem_of(kind, given)


def test_a_tool_whose_parameters_cannot_be_followed_is_named() -> None:
    """Without the grammar around them, which is not the client's."""
    tags = [
        {
            "begin": f'<tool_call>{{"name": "{name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "}</tool_call>",
        }
        for name, schema in (("look", {"const": 1}), ("go", {"not": {}}))
    ]
    more = {"separator": "", "at_least_one": True, "stop_after_first": True}
    tag = {"format": {"type": "tags_with_separator", "tags": tags, **more}}
    constraint = constraint_of(StructuredOutputsParams(structural_tag=json.dumps(tag)))
    assert constraint is not None
    problem = problem_of(*constraint)
    assert problem.startswith("the parameters of go: ")
    assert "not" in problem
    assert "\n" not in problem
    assert "%json" not in problem


async def test_a_heavy_grammar_is_ended_and_names_its_largest_pattern() -> None:
    with pytest.raises(GrammarRefused, match=r"too long to compile.*\(a\|b\){1\d\d}"):
        await Grammars().check(SCHEMA, json.dumps(HEAVY))


async def test_a_grammar_is_judged_once_however_many_ask() -> None:
    grammars = Grammars()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    heavy = [grammars.check(SCHEMA, json.dumps(HEAVY)) for _ in range(40)]
    found = await asyncio.gather(*heavy, return_exceptions=True)
    assert all(isinstance(one, GrammarRefused) for one in found)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent
    assert spent < 20  # each is given two seconds or three
    await grammars.check("choice", json.dumps(["yes", "no"]))


async def test_who_gives_up_leaves_no_judge_behind() -> None:
    others = set(psutil.Process().children())  # servers of the whole session
    waiting = asyncio.create_task(Grammars().check(SCHEMA, json.dumps(HEAVY)))
    while set(psutil.Process().children()) <= others:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert set(psutil.Process().children()) <= others


def test_schemas_are_allowed_one_of() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    assert "oneOf" in problem_of(SCHEMA, json.dumps(schema))
    given = StructuredOutputsParams(json=schema)
    constraint = constraint_of(given)
    assert constraint is not None
    assert problem_of(*constraint) == ""
    assert given.json == constraint[1]
