"""Reads JSON, and refuses what would mean one thing to us and another to others.

JSON here is RFC 8259's without its freedoms: UTF-8, each key once, finite numbers, no lone
surrogates, no NUL, a bounded depth, and so many keys and values at most.

Keys and values are counted before anyone parses them, as to look at millions takes seconds. Commas
and colons are counted, at the speed of memory; those inside of strings are told apart only where
there are so many that it matters.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnistage.server.common.errors import ApiError, field_path

MAX_DEPTH = 64
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
MAX_KEYS = 1 << 17
MAX_CONTAINERS = 1 << 17  # lists and objects
MAX_VALUES = 1 << 20
PIECE_BYTES = 1 << 20
QUOTE, COMMA, COLON, LIST, OBJECT = b'",:[{'

# A place in a body: what is around it, and its own key or index.
Link = tuple["Link", str | int] | None


def parse_json(data: bytes) -> dict[str, object]:
    """Returns the object in a body; raises ApiError with the field to blame where there is one."""
    if not data:
        raise _invalid("The body is empty; it must be a JSON object.")
    _check_counts(data)
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise _invalid(f"The body is not UTF-8: byte {error.start} is wrong.") from error
    except json.JSONDecodeError as error:
        message = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise _invalid(f"The body is not valid JSON: {message}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # more digits than Python reads
        raise _invalid("The body has a number with too many digits.") from error
    if not isinstance(value, dict):
        raise _invalid("The body must be a JSON object.")
    check_values(value)
    return value


@dataclass(frozen=True, slots=True)
class Counts:
    """Tells how much is in a body; of values those that follow another."""

    num_keys: int
    num_containers: int
    num_values: int

    @property
    def fit(self) -> bool:
        """Returns whether a body may have so many."""
        return (
            self.num_keys <= MAX_KEYS
            and self.num_containers <= MAX_CONTAINERS
            and self.num_values <= MAX_VALUES
        )


def _check_counts(data: bytes) -> None:
    """Raise ApiError for a body of too much; of no use for what is no JSON."""
    if Counts(data.count(b":"), data.count(b"[") + data.count(b"{"), data.count(b",")).fit:
        return
    counts = counted(data)
    if not counts.fit:
        message = (
            f"The body has {counts.num_keys} keys, {counts.num_containers} lists and objects, and "
            f"{counts.num_values} values; at most {MAX_KEYS}, {MAX_CONTAINERS} and {MAX_VALUES}."
        )
        raise ApiError(400, message, code="too_many_values")


def counted(data: bytes) -> Counts:
    """Returns what is outside of strings."""
    without_escapes = data.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    codes = np.frombuffer(without_escapes, np.uint8)
    num_keys = num_containers = num_values = 0
    is_inside = False
    for start in range(0, len(codes), PIECE_BYTES):
        piece = codes[start : start + PIECE_BYTES]
        inside = np.logical_xor.accumulate(piece == QUOTE) ^ is_inside
        outside = piece[~inside]
        num_keys += int(np.count_nonzero(outside == COLON))
        num_containers += int(np.count_nonzero((outside == LIST) | (outside == OBJECT)))
        num_values += int(np.count_nonzero(outside == COMMA))
        is_inside = bool(inside[-1])
    return Counts(num_keys, num_containers, num_values)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        name = _printable(_first_twice(pairs))
        raise _invalid(f"The key {name!r} is there twice in one object.", param=name)
    return value


def _first_twice(pairs: list[tuple[str, object]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is there twice")


def check_values(body: object) -> None:
    """Looks at every key and value once; raises ApiError."""
    waiting: list[tuple[object, Link, int]] = [(body, None, 1)]
    while waiting:
        value, link, depth = waiting.pop()
        if isinstance(value, str):
            _check_text(value, link)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _bad(link, "must be a finite number")
        elif isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _bad(link, "is an integer of more than 64 bits")
        elif isinstance(value, list) and depth <= MAX_DEPTH and _is_plain(value):
            continue
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise _too_deep()
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if isinstance(key, str):
                    _check_text(key, link)
                waiting.append((item, (link, key), depth + 1))


def _is_plain(items: list[Any]) -> bool:
    """Returns whether these are numbers within bounds; long lists need no look at each."""
    kinds = set(map(type, items))
    if kinds == {int}:
        return bool(min(items) >= MIN_INTEGER and max(items) <= MAX_INTEGER)
    return kinds == {float} and all(map(math.isfinite, items))


def _check_text(text: str, link: Link) -> None:
    if "\0" in text:
        raise _bad(link, "has a NUL character in it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _bad(link, "has half a surrogate pair in it") from error


def _path(link: Link) -> str:
    parts: list[str | int] = []
    while link is not None:
        link, part = link
        parts.append(part)
    return field_path(parts[::-1])


def _printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:80]


def _bad(link: Link, problem: str) -> ApiError:
    param = _path(link)
    return ApiError(
        400, f"{param or 'The body'} {problem}.", param=param or None, code="invalid_value"
    )


def _invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_json")


def _too_deep() -> ApiError:
    return _invalid(f"The body is nested more than {MAX_DEPTH} deep.")
