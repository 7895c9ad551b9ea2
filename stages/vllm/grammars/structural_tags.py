"""Calls of tools as llguidance's grammars: vLLM's tool parsers describe them for xgrammar alone.

The descriptions are xgrammar's structural tags (its documentation, "Structural Tag"): each call is
a tag with a beginning, arguments that follow a JSON schema, and an end.

A grammar with a text that the tokenizer would write otherwise leaves all tokens to the model
(`no_forcing`): those of the tokenizer would not be the text's.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import TypedDict

from omnistage.stage_configs.json_types import Json
from omnistage.stages.vllm.compat import GrammarRefused
from omnistage.stages.vllm.grammars.kept_texts import Keeps, keeps_all
from omnistage.stages.vllm.grammars.spelled_tokens import check_schema, fixed_texts

TOKEN = re.compile(r"<[^<>\s]+>")  # as a grammar can name one
TOOL = re.compile(r'"name": ?"([^"]+)"')  # in what begins its call
SLASH = r"\/"
# `oneOf` is read as `anyOf`; blanks between the parts of a value are the model's choice.
SCHEMA_OPTIONS = {"coerce_one_of": True, "whitespace_flexible": True}


def guided(schema: dict[str, object]) -> dict[str, object]:
    """The schema as llguidance is to read it."""
    return {**schema, "x-guidance": SCHEMA_OPTIONS}


class Calls(TypedDict):
    """A Lark grammar, and the schemas in it as JSON, by the names of their tools."""

    grammar: str
    arguments: dict[str, str]


def calls_of(tag: str, added_tokens: Collection[str], keeps: Keeps = keeps_all) -> Calls | None:
    """The grammar of a structural tag; None for the older form, which vLLM reads itself.

    To llguidance an added token of a tokenizer, as `<tool_call>`, is no text: a grammar names it.
    Raises GrammarRefused for a form that no tool parser of ours makes.
    """
    form = json.loads(tag).get("format")
    if form is None:
        return None
    lark = _Lark(added_tokens, keeps)
    return {"grammar": lark.grammar(form), "arguments": lark.arguments}


def lark_of_pattern(
    pattern: str, added_tokens: Collection[str], keeps: Keeps = keeps_all
) -> str | None:
    """The Lark grammar of a pattern that needs one: it has added tokens, or is not kept."""
    lark = _Lark(added_tokens, keeps)
    if len(lark.split(pattern)) == 1 and keeps(pattern, True):
        return None
    return lark.grammar({"type": "regex", "pattern": pattern})


def lark_of_choice(
    choice: Sequence[str], added_tokens: Collection[str], keeps: Keeps = keeps_all
) -> str | None:
    """The Lark grammar of texts that need one: one has added tokens, or is not kept."""
    lark = _Lark(added_tokens, keeps)
    if all(len(lark.split(text)) == 1 and keeps(text, False) for text in choice):
        return None
    texts = [{"type": "const_string", "value": text} for text in choice]
    return lark.grammar({"type": "or", "elements": texts})


def lark_of_schema(schema: dict[str, object], keeps: Keeps) -> str | None:
    """The Lark grammar of a guided schema of which a text is not kept; None if all are."""
    if all(keeps(*fixed) for fixed in fixed_texts(schema)):
        return None
    return _Lark((), keeps).grammar({"type": "json_schema", "json_schema": schema})


class _Lark:
    """The rules of one grammar."""

    def __init__(self, added_tokens: Collection[str], keeps: Keeps) -> None:
        self._added_tokens = added_tokens
        self._keeps = keeps
        self._is_kept = True
        self.arguments: dict[str, str] = {}
        names = [re.escape(name) for name in added_tokens if TOKEN.fullmatch(name)]
        self._names = re.compile(f"({'|'.join(names)})") if names else None
        self._rules = [r"TEXT: /(.|\n)*/"]

    def grammar(self, form: dict[str, object]) -> str:
        """All rules, from `start` on."""
        start = self._form(form)
        options = json.dumps({} if self._is_kept else {"no_forcing": True})
        return "\n".join([f"%llguidance {options}", *self._rules, f"start: {start}"])

    def split(self, text: str) -> list[str]:
        """A text's parts: every second one is an added token."""
        return [text] if self._names is None else self._names.split(text)

    def _rule(self, name: str, body: str, options: str = "") -> str:
        name = f"{name}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _form(self, form: Json) -> str:
        kind = form["type"]
        if kind == "or":
            return self._rule("any", " | ".join(self._form(one) for one in form["elements"]))
        if kind == "const_string":
            return self._text(form["value"])
        if kind == "json_schema":
            return self._arguments(form)
        if kind == "regex":
            return self._pattern(form["pattern"])
        if kind == "triggered_tags" and not form["at_least_one"]:
            return self._between_texts(form["tags"], form["triggers"], form["stop_after_first"])
        if kind == "tags_with_separator" and form["at_least_one"]:
            one = self._one_of(form["tags"])
            more = f"({self._text(form['separator'])} {one})*"
            return one if form["stop_after_first"] else self._rule("tags", f"{one} {more}")
        raise GrammarRefused(
            f"Grammar error: structural tags of the form {kind!r} are not supported"
        )

    def _between_texts(self, tags: list[Json], triggers: list[str], is_last: bool) -> str:
        """Any text, and a tag wherever one begins; the first ends the text if it is the last."""
        if len(triggers) != 1 or any(not tag["begin"].startswith(triggers[0]) for tag in tags):
            raise GrammarRefused("Grammar error: tags that begin in several ways are not supported")
        (trigger,) = triggers
        one = self._one_of([{**tag, "begin": tag["begin"].removeprefix(trigger)} for tag in tags])
        # A token ends the text before it; a string must be looked for in it, lazily.
        is_token = len(self.split(trigger)) > 1
        begin = self._rule("begin", f"TEXT {self._text(trigger)}", "" if is_token else "[lazy]")
        return self._rule("texts", f"TEXT | {begin} {one}" if is_last else f"({begin} {one})* TEXT")

    def _one_of(self, tags: list[Json]) -> str:
        bodies = [
            f"{self._text(tag['begin'])} {self._arguments_of(tag)} {self._text(tag['end'])}"
            for tag in tags
        ]
        return self._rule("one", " | ".join(self._rule("tag", body) for body in bodies))

    def _arguments_of(self, tag: Json) -> str:
        found = TOOL.search(tag["begin"])
        return self._arguments(tag["content"], found[1] if found else tag["begin"].strip())

    def _arguments(self, content: Json, tool: str = "") -> str:
        schema = _schema(content)
        check_schema(schema, self._added_tokens)
        if tool:
            self.arguments[tool] = json.dumps(schema)
        for fixed in fixed_texts(schema):
            self._note(*fixed)
        return self._rule("arguments", f"%json {json.dumps(schema)}")

    def _note(self, text: str, is_pattern: bool = False) -> None:
        self._is_kept = self._is_kept and self._keeps(text, is_pattern)

    def _text(self, text: str) -> str:
        """A text in a rule: its parts in quotes, the tokens between them by name."""
        parts = self.split(text)
        for part in parts[::2]:
            self._note(part)
        return " ".join(
            part if at % 2 else json.dumps(part) for at, part in enumerate(parts) if part
        )

    def _pattern(self, pattern: str) -> str:
        """The same of a regular expression: its tokens must not be inside a group or a class."""
        parts = []
        for number, part in enumerate(self.split(pattern)):
            if number % 2:
                parts.append(part)
            elif part:
                self._note(part, is_pattern=True)
                try:
                    re.compile(part)
                except re.error:
                    raise GrammarRefused(
                        "Grammar error: a pattern may have the model's own tokens, as <tool_call>, "
                        "only outside of groups and classes"
                    ) from None
                parts.append(f"/{part.replace('/', SLASH)}/")
        return self._rule("pattern", " ".join(parts))


def _schema(content: dict[str, object]) -> dict[str, object]:
    """The schema of a tag's arguments; any object where the tool does not say."""
    written = content.get("style") or "json"
    kind = content["type"] if content["type"] != "json_schema" else written
    if kind != "json":
        raise GrammarRefused(f"Grammar error: arguments as {kind!r} are not supported")
    schema = content["json_schema"]
    return guided(schema if isinstance(schema, dict) else {"type": "object"})
