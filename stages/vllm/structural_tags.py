"""Calls of tools as llguidance's grammars: vLLM's tool parsers describe them for xgrammar alone.

The descriptions are xgrammar's structural tags (its documentation, "Structural Tag"): each call is
a tag with a beginning, arguments that follow a JSON schema, and an end.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from omnistage.stages.vllm.compat import GrammarRefused
from omnistage.stages.vllm.spelled_tokens import check_schema

TOKEN = re.compile(r"<[^<>\s]+>")  # as a grammar can name one
SLASH = r"\/"


def grammar_of(tag: str, added_tokens: Collection[str]) -> str | None:
    """The Lark grammar of a structural tag; None for the older form, which vLLM reads itself.

    To llguidance an added token of a tokenizer, as `<tool_call>`, is no text: a grammar names it.
    Raises GrammarRefused for a form that no tool parser of ours makes.
    """
    form = json.loads(tag).get("format")
    return None if form is None else _Lark(added_tokens).grammar(form)


def lark_of_pattern(pattern: str, added_tokens: Collection[str]) -> str | None:
    """The Lark grammar of a pattern that has added tokens; None for one that has none."""
    lark = _Lark(added_tokens)
    if len(lark.split(pattern)) == 1:
        return None
    return lark.grammar({"type": "regex", "pattern": pattern})


def lark_of_choice(choice: Sequence[str], added_tokens: Collection[str]) -> str | None:
    """The Lark grammar of some texts of which one has added tokens; None if none has any."""
    lark = _Lark(added_tokens)
    if all(len(lark.split(text)) == 1 for text in choice):
        return None
    texts = [{"type": "const_string", "value": text} for text in choice]
    return lark.grammar({"type": "or", "elements": texts})


class _Lark:
    """The rules of one grammar."""

    def __init__(self, added_tokens: Collection[str]) -> None:
        self._added_tokens = added_tokens
        names = [re.escape(name) for name in added_tokens if TOKEN.fullmatch(name)]
        self._names = re.compile(f"({'|'.join(names)})") if names else None
        self._rules = ["%llguidance {}", r"TEXT: /(.|\n)*/"]

    def grammar(self, form: dict[str, Any]) -> str:
        """All rules, from `start` on."""
        start = self._form(form)
        return "\n".join([*self._rules, f"start: {start}"])

    def split(self, text: str) -> list[str]:
        """A text's parts: every second one is an added token."""
        return [text] if self._names is None else self._names.split(text)

    def _rule(self, name: str, body: str, options: str = "") -> str:
        name = f"{name}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _form(self, form: dict[str, Any]) -> str:
        kind = form["type"]
        if kind == "or":
            return self._rule("any", " | ".join(self._form(one) for one in form["elements"]))
        if kind == "const_string":
            return self._text(form["value"])
        if kind == "json_schema":
            return self._arguments(form)
        if kind == "regex":
            return self._pattern(form["pattern"])
        if kind == "triggered_tags" and not form["at_least_one"] and not form["stop_after_first"]:
            return self._between_texts(form["tags"], form["triggers"])
        if kind == "tags_with_separator" and form["at_least_one"]:
            one = self._one_of(form["tags"])
            more = f"({self._text(form['separator'])} {one})*"
            return one if form["stop_after_first"] else self._rule("tags", f"{one} {more}")
        raise GrammarRefused(
            f"Grammar error: structural tags of the form {kind!r} are not supported"
        )

    def _between_texts(self, tags: list[dict[str, Any]], triggers: list[str]) -> str:
        """Any text, and a tag wherever one begins."""
        if len(triggers) != 1 or any(not tag["begin"].startswith(triggers[0]) for tag in tags):
            raise GrammarRefused("Grammar error: tags that begin in several ways are not supported")
        (trigger,) = triggers
        one = self._one_of([{**tag, "begin": tag["begin"].removeprefix(trigger)} for tag in tags])
        # A token ends the text before it; a string must be looked for in it, lazily.
        is_token = len(self.split(trigger)) > 1
        begin = self._rule("begin", f"TEXT {self._text(trigger)}", "" if is_token else "[lazy]")
        return self._rule("texts", f"({begin} {one})* TEXT")

    def _one_of(self, tags: list[dict[str, Any]]) -> str:
        bodies = [
            f"{self._text(tag['begin'])} {self._arguments(tag['content'])} {self._text(tag['end'])}"
            for tag in tags
        ]
        return self._rule("one", " | ".join(self._rule("tag", body) for body in bodies))

    def _arguments(self, content: dict[str, Any]) -> str:
        schema = _schema(content)
        check_schema(schema, self._added_tokens)
        return self._rule("arguments", f"%json {json.dumps(schema)}")

    def _text(self, text: str) -> str:
        """A text in a rule: its parts in quotes, the tokens between them by name."""
        parts = enumerate(self.split(text))
        return " ".join(part if at % 2 else json.dumps(part) for at, part in parts if part)

    def _pattern(self, pattern: str) -> str:
        """The same of a regular expression: its tokens must not be inside a group or a class."""
        parts = []
        for number, part in enumerate(self.split(pattern)):
            if number % 2:
                parts.append(part)
            elif part:
                try:
                    re.compile(part)
                except re.error:
                    raise GrammarRefused(
                        "Grammar error: a pattern may have the model's own tokens, as <tool_call>, "
                        "only outside of groups and classes"
                    ) from None
                parts.append(f"/{part.replace('/', SLASH)}/")
        return self._rule("pattern", " ".join(parts))


def _schema(content: dict[str, Any]) -> dict[str, Any]:
    """Of a tag's arguments; any object where the tool does not say."""
    if content["type"] != "json_schema":
        raise GrammarRefused(f"Grammar error: arguments as {content['type']!r} are not supported")
    schema = content["json_schema"]
    return schema if isinstance(schema, dict) else {"type": "object"}
