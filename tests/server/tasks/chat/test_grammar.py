"""What an answer may be asked to look like: bounds that keep a grammar compiler off the engine."""

from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.chat.grammar import (
    check_response_format,
    check_schema,
    check_structured_outputs,
)

TREE = {"type": "object", "properties": {"child": {"$ref": "#"}, "name": {"type": "string"}}}
LIST = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        TREE,
        LIST,
        {"type": "array", "maxItems": 4096},
        {"type": "string", "maxLength": 100_000},
        {"enum": [{"maxItems": 10**9}]},
        {"$ref": "#/nowhere"},
    ],
)
def test_a_schema_within_bounds_passes(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "param", "words"),
    [
        (3, "s", "an object"),
        ({"type": "array", "minItems": 10**9}, "s.minItems", "at most 4096"),
        ({"items": {"maxItems": 1e9}}, "s.items.maxItems", "at most 4096"),
        ({"anyOf": [{}, {"minProperties": 5000}]}, "s.anyOf[1].minProperties", "at most 4096"),
        ({"pattern": "a" * 2000}, "s.pattern", "1024"),
        ({"enum": ["x" * 100] * 1000}, "s", "65536 characters"),
        ({"allOf": [{"$ref": "#"}]}, "s", "without an end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "s", "without an end"),
        ({"properties": {"p": {"anyOf": [{"$ref": "#/properties/p"}]}}}, "s", "without an end"),
        (
            {"$ref": "#/0", **{str(n): {"$ref": f"#/{n + 1}"} for n in range(2000)}},
            "s",
            "chain of references",
        ),
    ],
)
def test_a_schema_out_of_bounds_is_refused(schema: Any, param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_schema(schema, "s")
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    "given",
    [
        {"json": TREE},
        {"json": '{"type": "object"}'},
        {"json_object": True},
        {"regex": "a{3}"},
        {"choice": ["yes", "no"]},
        {"choice": ["yes"], "regex": None},
    ],
)
def test_one_constraint_passes(given: Any) -> None:
    check_structured_outputs(given)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({"grammar": "root ::= root"}, "structured_outputs.grammar"),
        ({"_backend": "x"}, "structured_outputs._backend"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": '{"a":' * 900 + "1" + "}" * 900}, "structured_outputs.json"),
        ({"json": {"minItems": 10**9}}, "structured_outputs.json.minItems"),
        ({"json_object": False}, "structured_outputs.json_object"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"regex": "a" * 2000}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": [3]}, "structured_outputs.choice"),
        ({"choice": ["x" * 70_000]}, "structured_outputs.choice"),
    ],
)
def test_other_constraints_are_refused(given: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_structured_outputs(given)
    assert caught.value.param == param


def test_response_formats() -> None:
    check_response_format({"type": "text"})
    check_response_format({"type": "json_schema", "json_schema": {"name": "n", "schema": TREE}})
    for given, param in (
        ({}, "response_format.type"),
        ({"type": "structural_tag"}, "response_format.type"),
        ({"type": []}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "n"}},
            "response_format.json_schema.schema",
        ),
    ):
        with pytest.raises(ApiError) as caught:
            check_response_format(given)
        assert caught.value.param == param
