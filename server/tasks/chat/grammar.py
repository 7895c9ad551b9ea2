"""Bounds what a request may ask an answer to look like: compiling a grammar holds up its engine.

A grammar compiler unrolls the counts of arrays and objects: one that counts to a billion takes
its engine away from everybody.
"""

from collections.abc import Mapping

import msgspec

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.common.json_text import parse_json
from omnistage.stage_configs.json_types import Json

MAX_COUNT = 4096
MAX_GRAMMAR_CHARACTERS = 64 << 10
MAX_PATTERN_CHARACTERS = 1024
MAX_CHOICES = 1024
COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
VALUES = ("const", "default", "enum", "examples")  # what a schema says of values is no schema
FORMATS = ("text", "json_object", "json_schema")
CONSTRAINTS = ("choice", "json", "json_object", "regex")
# A schema under these is about the same value as the schema around them.
SAME_VALUE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not")


def check_response_format(given: Mapping[str, object]) -> None:
    """Raise ApiError for a `response_format` that is none, or is too much."""
    form = given.get("type")
    if form not in FORMATS:
        message = f"{form!r} is unknown; allowed: {', '.join(FORMATS)}"
        raise invalid("response_format.type", message)
    if form != "json_schema":
        return
    place = "response_format.json_schema"
    described = given.get("json_schema")
    if not isinstance(described, dict) or not isinstance(described.get("name"), str):
        raise invalid(place, "must be an object with a name and a schema")
    check_schema(described.get("schema"), f"{place}.schema")


def check_structured_outputs(given: Mapping[str, object]) -> None:
    """Raise ApiError unless it is exactly one constraint, within bounds."""
    place = "structured_outputs"
    wanted = [name for name, value in given.items() if value is not None]
    for name in wanted:
        if name not in CONSTRAINTS:
            raise invalid(f"{place}.{name}", f"is not supported; allowed: {', '.join(CONSTRAINTS)}")
    if len(wanted) != 1:
        raise invalid(place, f"must have exactly one of {', '.join(CONSTRAINTS)}")
    (name,) = wanted
    value, path = given[name], f"{place}.{name}"
    if name == "json":
        check_schema(_parsed(value, path), path)
    elif name == "json_object":
        if value is not True:
            raise invalid(path, "must be true")
    elif name == "choice":
        _check_choices(value, path)
    elif not isinstance(value, str) or not 1 <= len(value) <= MAX_PATTERN_CHARACTERS:
        raise invalid(path, f"must be a string of 1 to {MAX_PATTERN_CHARACTERS} characters")


def check_schema(schema: object, path: str) -> None:
    """Raise ApiError for what is no JSON schema, or would be too large a grammar."""
    if not isinstance(schema, dict):
        raise invalid(path, "must be a JSON schema, an object")
    if len(msgspec.json.encode(schema)) > MAX_GRAMMAR_CHARACTERS:
        raise invalid(path, f"is longer than {MAX_GRAMMAR_CHARACTERS} characters")
    try:
        _check_counts(schema, path)
        _Recursion(schema, path).check(schema)
    except RecursionError as error:
        raise invalid(path, "has too long a chain of references") from error


class _Recursion:
    """Finds a schema that refers to itself without a step into the value: it has no end."""

    def __init__(self, root: Json, path: str) -> None:
        self._root = root
        self._path = path
        self._open: set[int] = set()
        self._followed: set[int] = set()

    def check(self, schema: object) -> None:
        """Raise ApiError if there is one below; unknown references are the compiler's business."""
        if isinstance(schema, list):
            for item in schema:
                self.check(item)
        elif isinstance(schema, dict):
            self._follow(schema)
            for value in schema.values():
                self.check(value)

    def _follow(self, schema: object) -> None:
        """Visit the schemas about the same value."""
        if not isinstance(schema, dict) or id(schema) in self._followed:
            return
        if id(schema) in self._open:
            raise invalid(self._path, "refers to itself without an end")
        self._open.add(id(schema))
        self._follow(self._referred(schema.get("$ref")))
        for name in SAME_VALUE:
            value = schema.get(name)
            for item in value if isinstance(value, list) else [value]:
                self._follow(item)
        self._open.remove(id(schema))
        self._followed.add(id(schema))

    def _referred(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: object = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part) if isinstance(found, dict) else None
        return found


def _check_counts(schema: object, path: str) -> None:
    if isinstance(schema, list):
        for number, item in enumerate(schema):
            _check_counts(item, f"{path}[{number}]")
    elif isinstance(schema, dict):
        for key, value in schema.items():
            below = f"{path}.{key}"
            if key in COUNTS and isinstance(value, int | float) and value > MAX_COUNT:
                raise invalid(below, f"is {value}; at most {MAX_COUNT}")
            if key == "pattern" and isinstance(value, str) and len(value) > MAX_PATTERN_CHARACTERS:
                raise invalid(below, f"is longer than {MAX_PATTERN_CHARACTERS} characters")
            if key not in VALUES:
                _check_counts(value, below)


def _parsed(value: object, path: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except ApiError as error:
        raise invalid(path, "is a string that is no JSON object") from error


def _check_choices(value: object, path: str) -> None:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise invalid(path, f"must be a list of 1 to {MAX_CHOICES} strings")
    if not all(isinstance(one, str) and one for one in value):
        raise invalid(path, "must be a list of strings, none of them empty")
    if sum(map(len, value)) > MAX_GRAMMAR_CHARACTERS:
        raise invalid(path, f"has more than {MAX_GRAMMAR_CHARACTERS} characters")
