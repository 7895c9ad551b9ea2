"""Fixed texts of a grammar that spell a token which a tokenizer was given, as `<tool_call>`.

llguidance takes such a text for the token and then refuses the token as text, in the middle of an
answer. Texts that a model may choose itself are not concerned.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from omnistage.stages.vllm.compat import GrammarRefused

# Keywords of JSON Schema whose values are schemas by name; of some the names are texts as well.
NAMED = ("$defs", "definitions", "dependentSchemas")
NAMED_BY_TEXT = ("properties", "patternProperties")
VALUES = ("const", "enum")
NOT_FOLLOWED = ("title", "description", "default", "examples", "$comment", "$id", "$schema")


class FixedText(NamedTuple):
    """A name, a value or a pattern that a schema wants written."""

    text: str
    is_pattern: bool = False


def check_schema(schema: object, added_tokens: Collection[str]) -> None:
    """Raise GrammarRefused for a JSON schema with such a text."""
    check_texts((one.text for one in fixed_texts(schema)), added_tokens)


def check_texts(texts: Iterable[str], added_tokens: Collection[str]) -> None:
    """Raise GrammarRefused if one of these texts is such."""
    for text in texts:
        for token in added_tokens:
            if token in text:
                raise GrammarRefused(
                    f"Grammar error: a fixed text spells {token}, a token of the model; "
                    "use another spelling"
                )


def fixed_texts(schema: object) -> Iterator[FixedText]:
    """Yield what a schema wants written as it stands: names, values, patterns."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in VALUES:
            yield from map(FixedText, _strings(value))
        elif keyword == "pattern" and isinstance(value, str):
            yield FixedText(value, is_pattern=True)
        elif keyword in (*NAMED, *NAMED_BY_TEXT) and isinstance(value, dict):
            if keyword in NAMED_BY_TEXT:
                is_pattern = keyword == "patternProperties"
                yield from (FixedText(name, is_pattern) for name in value)
            for one in value.values():
                yield from fixed_texts(one)
        elif keyword not in NOT_FOLLOWED:
            for one in value if isinstance(value, list) else [value]:
                yield from fixed_texts(one)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from _strings([*value, *value.values()])
