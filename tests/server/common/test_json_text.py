"""What is counted in a JSON body before it is parsed, and what is refused by it."""

import json
from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import (
    MAX_CONTAINERS,
    MAX_KEYS,
    MAX_VALUES,
    PIECE_BYTES,
    Counts,
    counted,
    parse_json,
)


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ({}, Counts(0, 1, 0)),
        ({"a": 1, "b": [1, 2, 3]}, Counts(2, 2, 3)),
        ({"a": "1, 2, [3], {4: 5}"}, Counts(1, 1, 0)),
        ({'"quoted, twice"': '\\"', "b": "\\"}, Counts(2, 1, 1)),
        ({"a": '\\\\",' * 5, "b": [[], {}]}, Counts(2, 4, 2)),
        ({"a": "," * PIECE_BYTES, "b": 1, "c": ":" * PIECE_BYTES}, Counts(3, 1, 2)),
    ],
)
def test_what_is_inside_of_strings_does_not_count(value: Any, counts: Counts) -> None:
    assert counted(json.dumps(value).encode()) == counts


@pytest.mark.parametrize(
    "value",
    [
        {"a": [0] * (MAX_VALUES + 2)},
        {"a": {str(number): 0 for number in range(MAX_KEYS)}},
        {"a": [[]] * MAX_CONTAINERS},
        {"a": [{}] * MAX_CONTAINERS},
    ],
)
def test_a_body_of_too_much_is_refused(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(json.dumps(value).encode())
    assert caught.value.code == "too_many_values"


@pytest.mark.parametrize(
    "value",
    [
        {"a": [0] * (MAX_VALUES - 10)},
        {"a": {str(number): 0 for number in range(MAX_KEYS - 10)}},
        {"a": [[]] * (MAX_CONTAINERS - 10)},
        {"a": ',:[{"' * MAX_VALUES},
    ],
)
def test_a_body_of_much_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
