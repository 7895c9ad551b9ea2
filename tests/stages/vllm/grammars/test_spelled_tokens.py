"""Which texts of a grammar a model must write as they stand, and may not if they spell a token."""

from typing import Any

import pytest

pytest.importorskip("vllm")

from omnistage.stages.vllm.compat import GrammarRefused
from omnistage.stages.vllm.grammars.spelled_tokens import check_schema, check_texts

TOKEN = "<tool_call>"
ADDED = ("<think>", TOKEN)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, f"a{TOKEN}"]},
        {"const": {"a": [{"b": TOKEN}]}},
        {"const": {TOKEN: 1}},
        {"pattern": f"^{TOKEN}$"},
        {"properties": {TOKEN: {}}},
        {"patternProperties": {TOKEN: {}}},
        {"properties": {"title": {"const": TOKEN}}},
        {"$defs": {"a": {"const": TOKEN}}},
        {"anyOf": [{}, {"items": {"const": TOKEN}}]},
    ],
)
def test_a_fixed_text_of_a_schema_must_not_spell_a_token(schema: Any) -> None:
    with pytest.raises(GrammarRefused, match=f"Grammar error: a fixed text spells {TOKEN}"):
        check_schema(schema, ADDED)
    check_schema(schema, ())


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "string", "description": TOKEN, "title": TOKEN, "default": TOKEN},
        {"type": "string", "examples": [{"const": TOKEN}]},
        {"$defs": {TOKEN: {"type": "string"}}},
        {"enum": ["tool_call", "<tool"]},
    ],
)
def test_what_no_answer_has_to_spell_may_be_anything(schema: Any) -> None:
    check_schema(schema, ADDED)


def test_texts_to_choose_from_must_not_spell_a_token() -> None:
    check_texts(["a", "b"], ADDED)
    with pytest.raises(GrammarRefused, match="spells <think>"):
        check_texts(["a", "<think>"], ADDED)
