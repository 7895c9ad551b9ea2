"""Calls of tools as grammars that llguidance takes, whether `<tool_call>` is a token or text."""

import json
import random
import re
from collections.abc import Collection
from typing import Any

import llguidance
import llguidance.hf
import pytest
from transformers import AutoTokenizer

from omnistage.stages.vllm.compat import GrammarRefused
from omnistage.stages.vllm.grammars.grammar_judge import problem_of
from omnistage.stages.vllm.grammars.structural_tags import calls_of, lark_of_choice, lark_of_pattern

SCHEMA = {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"]}
GO = '<tool_call>\n{"name": "Go", "arguments": {"at": 2}}\n</tool_call>'
BAD = '<tool_call>\n{"name": "Go", "arguments": {"at": 3}}\n</tool_call>'


def call(name: str, schema: Any) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{name}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}\n</tool_call>",
    }


def tag(kind: str, **more: Any) -> str:
    tags = [call("Go", SCHEMA), call("Look", True)]
    form = {"type": kind, "tags": tags, "at_least_one": kind != "triggered_tags", **more}
    return json.dumps({"type": "structural_tag", "format": form})


LAST = tag("triggered_tags", triggers=["<tool_call>"], stop_after_first=True)
FREE = tag("triggered_tags", triggers=["<tool_call>"], stop_after_first=False)
ONE = tag("tags_with_separator", separator="", stop_after_first=True)
MANY = tag("tags_with_separator", separator=", ", stop_after_first=False)


EITHER = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "or",
            "elements": [
                json.loads(FREE)["format"],
                {"type": "regex", "pattern": "a/b<tool_call>[0-9]+"},
                {"type": "or", "elements": [{"type": "const_string", "value": "yes"}]},
            ],
        },
    }
)
PATTERN = "Well, (a|b)+<tool_call>[0-9]{2}</tool_call>"


def grammar_of(form: str, added_tokens: Collection[str]) -> str | None:
    calls = calls_of(form, added_tokens)
    return None if calls is None else calls["grammar"]


def follows(grammar: str, text: str) -> bool:
    """Whether the bytes are a whole text of the grammar."""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (ONE, [GO], ["", "words", BAD, GO + GO, f"words {GO}"]),
        (MANY, [GO, f"{GO}, {GO}"], ["", "words", BAD, GO + GO]),
        (json.dumps({"format": {"type": "regex", "pattern": "a/b"}}), ["a/b"], ["a", "words"]),
        (LAST, ["", "words", GO, f"words {GO}"], [BAD, f"words {BAD}", GO + GO, f"{GO} more"]),
        (FREE, ["", "words", GO, f"words {GO} and {GO} more"], [BAD, f"words {BAD}"]),
    ],
)
def test_a_text_is_followed_as_the_tag_says(form: str, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(form, ())
    assert grammar is not None
    assert problem_of("grammar", grammar) == ""
    assert [follows(grammar, text) for text in good] == [True] * len(good)
    assert [follows(grammar, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize("form", [ONE, MANY, FREE, LAST, EITHER, PATTERN])
def test_a_call_can_be_made_of_a_tokenizer_s_own_tokens(form: str, tiny_checkpoint: Any) -> None:
    """Each token that the grammar allows is one that it then takes."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_checkpoint))
    assert "<tool_call>" in tokenizer.get_added_vocab()
    tokens = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
    make = lark_of_pattern if form is PATTERN else grammar_of
    grammar = make(form, tokenizer.get_added_vocab())
    assert grammar is not None
    for seed in range(5):
        chance = random.Random(seed)
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
        taken: list[int] = []
        while not matcher.is_stopped() and len(taken) < 80:
            mask = matcher.compute_bitmask()
            allowed = [one for one in range(len(tokenizer)) if mask[one // 8] >> one % 8 & 1]
            assert allowed
            taken.append(chance.choice(allowed))
            assert matcher.consume_token(taken[-1]), matcher.get_error()
        if form is PATTERN and matcher.is_stopped():
            assert re.match(PATTERN, tokenizer.decode(taken, skip_special_tokens=False))
        if form is ONE:
            assert tokenizer.decode(taken).startswith("<tool_call>")


def test_a_choice_of_a_tokenizer_s_own_tokens_can_be_made(tiny_checkpoint: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_checkpoint))
    tokens = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
    grammar = lark_of_choice(["no", "a<tool_call>b"], tokenizer.get_added_vocab())
    assert grammar is not None
    for text in ("no", "a<tool_call>b"):
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
        for token in tokenizer(text)["input_ids"]:
            assert matcher.consume_token(token), matcher.get_error()
        assert matcher.is_accepting()


def test_a_choice_without_tokens_stays_one() -> None:
    assert lark_of_choice(["a", "b"], ("<tool_call>",)) is None


def test_arguments_whose_schema_spells_a_token_are_refused() -> None:
    form = {"type": "json_schema", "json_schema": {"enum": ["<tool_call>"]}}
    with pytest.raises(GrammarRefused, match="spells <tool_call>"):
        grammar_of(json.dumps({"format": form}), ("<tool_call>",))


def test_a_pattern_without_tokens_stays_one() -> None:
    assert lark_of_pattern("a<b>c", ()) is None
    assert lark_of_pattern("abc", ("<tool_call>",)) is None


@pytest.mark.parametrize("pattern", ["(a<tool_call>)+", "[<tool_call>]", "(<tool_call>|b)"])
def test_tokens_inside_of_a_group_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarRefused, match="only outside of groups and classes"):
        lark_of_pattern(pattern, ("<tool_call>",))


def test_the_schemas_of_calls_are_known_by_their_tools() -> None:
    calls = calls_of(FREE, ())
    assert calls is not None
    assert calls["arguments"].keys() == {"Go", "Look"}
    assert json.loads(calls["arguments"]["Go"]).items() >= SCHEMA.items()


def test_alternatives_of_arguments_are_allowed() -> None:
    """`oneOf`, as pydantic writes unions, is read as `anyOf`."""
    form = {"type": "json_schema", "json_schema": {"oneOf": [{"const": 1}, {"const": 2}]}}
    grammar = grammar_of(json.dumps({"format": form}), ())
    assert grammar is not None
    assert [follows(grammar, text) for text in ("1", "2", "3")] == [True, True, False]


def test_the_older_form_is_left_to_the_engine() -> None:
    older = {"type": "structural_tag", "structures": [], "triggers": []}
    assert grammar_of(json.dumps(older), ()) is None


@pytest.mark.parametrize(
    "form",
    [
        {"type": "sequence", "elements": []},
        {"type": "tags_with_separator", "tags": [], "separator": "", "at_least_one": False},
        {
            "type": "triggered_tags",
            "tags": [call("Go", SCHEMA)],
            "triggers": ["<tool_call>", "<other>"],
            "at_least_one": False,
            "stop_after_first": False,
        },
        {
            "type": "tags_with_separator",
            "tags": [{**call("Go", SCHEMA), "content": {"type": "any_text"}}],
            "separator": "",
            "at_least_one": True,
            "stop_after_first": True,
        },
        {"type": "json_schema", "json_schema": SCHEMA, "style": "qwen_xml"},
    ],
)
def test_another_form_is_refused_by_name(form: dict[str, Any]) -> None:
    with pytest.raises(GrammarRefused, match="not supported"):
        grammar_of(json.dumps({"type": "structural_tag", "format": form}), ())
