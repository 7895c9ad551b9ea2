"""Bodies that are JSON to some readers only are refused, and say why."""

import json

import httpx
import pytest
from support.gateway.serving import MODEL

from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import MAX_DEPTH, parse_json

URL = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
GOOD = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "words"}]})


def nested(depth: int) -> bytes:
    return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("data", "param", "words"),
    [
        (b"", None, "is empty"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b"3", None, "must be a JSON object"),
        (b"null", None, "must be a JSON object"),
        (b'{"a": 1, "a": 2}', "a", "'a' is there twice"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "b", "'b' is there twice"),
        (b'{"\\u00e9": 1, "\xc3\xa9": 2}', "\\xe9", "there twice"),
        (b'{"a": "\xff"}', None, "byte 7"),
        ('{"a": 1}'.encode("utf-16"), None, "not UTF-8"),
        (b'{"a": [1, NaN]}', "a[1]", "finite"),
        (b'{"a": -Infinity}', "a", "finite"),
        (b'{"a": 1e400}', "a", "finite"),
        (b'{"a": 18446744073709551616}', "a", "64 bits"),
        (b'{"a": -9223372036854775809}', "a", "64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", None, "too many digits"),
        (b'{"a": {"b": "x\\u0000y"}}', "a.b", "NUL"),
        (b'{"a": ["\\ud800"]}', "a[0]", "surrogate"),
        (b'{"a": {"\\udc00": 1}}', "a", "surrogate"),
        (nested(MAX_DEPTH + 1), None, f"more than {MAX_DEPTH} deep"),
        (b"[" * 10_000 + b"]" * 10_000, None, "deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, None, "deep"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, param: str | None, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(data)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -1.5e300, (1 << 64) - 1, -(1 << 63), True, None]},
        {"a": "é\u202e\ufeff\uffff\U0010ffff", "": {}},
        json.loads(nested(MAX_DEPTH)),
    ],
)
def test_what_is_unusual_but_right_passes(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {**JSON, "content-encoding": "gzip"},
    ],
)
def test_another_type_of_body_is_a_415(headers: dict[str, str], client: httpx.Client) -> None:
    response = client.post(URL, content=GOOD, headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=UTF-8", "application/vnd.x+json"]
)
def test_json_by_its_other_names_is_read(kind: str, client: httpx.Client) -> None:
    response = client.post(URL, content=GOOD, headers={"content-type": kind})
    assert response.status_code == 200


def test_a_long_body_is_judged_like_a_short_one(client: httpx.Client) -> None:
    data = GOOD.replace("words", "x" * 100_000)
    assert client.post(URL, content=data, headers=JSON).status_code == 200
    twice = data[:-1] + ', "model": "again"}'
    response = client.post(URL, content=twice, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"
