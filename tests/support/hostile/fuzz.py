"""Mutated bodies: some are answers' worth, most are not; and what every answer to them must be."""

import copy
import json
import os
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.api.prompts import sound, sound_part
from support.gateway.serving import MODEL
from support.hostile.bad_parts import good_png, good_wav, url_part

from omnistage.server.tasks.chat.fields import IGNORED, REFUSED
from omnistage.server.tasks.chat.messages import ROLES
from omnistage.server.tasks.chat.schema import DONE

LONG = "OMNISTAGE_LONG_FUZZ"

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "words"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "3"},
    {
        "role": "user",
        "content": [
            url_part("image_url", "image/png", good_png()),
            url_part("audio_url", "audio/wav", good_wav()),
            sound_part(sound(1600)),
            {"type": "text", "text": "words"},
        ],
    },
]
SHORT = {"max_completion_tokens": 4}
BODIES: list[dict[str, Any]] = [
    {"model": MODEL, "messages": TURNS[:2], "temperature": 0.5, "stop": ["x"], "n": 2, **SHORT},
    {
        "model": MODEL,
        "messages": TURNS,
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "wav"},
        "stage_params": {"talker": {"temperature": 0, "max_tokens": 3}},
        "return_codes": True,
        **SHORT,
    },
    {
        "model": MODEL,
        "messages": TURNS[1:4],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "logit_bias": {"5": 1},
        "seed": 7,
        **SHORT,
    },
]

PROMPTS: list[dict[str, Any]] = [
    {"model": MODEL, "prompt": "words", "temperature": 0.5, "stop": ["x"], "n": 2, "logprobs": 1},
    {"model": MODEL, "prompt": ["words", "more"], "echo": True, "max_tokens": 0},
    {"model": MODEL, "prompt": [[1, 2], [3]], "stream": True, "best_of": 1, "seed": 7},
]

URLS = [
    "http://127.0.0.1:9/",
    "https://[",
    "http://\u0661/",
    "file:///etc/passwd",
    "file:",
    "http:",
]

texts = st.one_of(
    st.sampled_from(URLS),
    st.sampled_from(["", "\0", "\ud800", "\u202e", "NaN", "data:", "data:;base64,", *ROLES]),
    st.text(max_size=8),
)


def odd_values(texts: st.SearchStrategy[str], max_leaves: int = 5) -> st.SearchStrategy[Any]:
    """What JSON can say, with some of its strings."""
    return st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from([0, -1, 1 << 63, 1 << 64, 10**30])
        | st.floats()
        | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=max_leaves,
    )


odd = odd_values(texts)
names = st.one_of(st.sampled_from(sorted(DONE | IGNORED | REFUSED.keys())), texts)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, item in items:
            found += [(value, key), *places(item)]
    return found


@st.composite
def bodies(draw: st.DrawFn, good: list[dict[str, Any]]) -> bytes:
    body = copy.deepcopy(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 3))):
        spots = places(body)
        if not spots or draw(st.integers(0, 3)) == 0:
            body[draw(names)] = draw(odd)
            continue
        around, key = draw(st.sampled_from(spots))
        if draw(st.booleans()):
            around[key] = draw(odd)
        else:
            del around[key]
    return damaged(draw, json.dumps(body).encode(), one_in=5)


def damaged(draw: st.DrawFn, data: bytes, one_in: int, max_cut: int = 4) -> bytes:
    """One body in so many has other bytes in a place of it, and some fewer."""
    if draw(st.integers(0, one_in - 1)) > 0:
        return data
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, max_cut)) :]


def num_cases(usual: int, long: int) -> int:
    """How many to draw in a usual run of the suite, and in `make fuzz`."""
    return long if os.environ.get(LONG) else usual


def fuzzed(count: int = 150) -> settings:
    """The same so many examples each time, over a server of the whole session."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def assert_answered(response: httpx.Response, sent: Any) -> None:
    """An answer without an error in it, or a refusal with all that OpenAI's have."""
    assert response.status_code < 500, (sent, response.text)
    if response.status_code == 200:
        assert b'"error"' not in response.content, sent
        return
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert isinstance(error["code"], str), (sent, error)


def drawn(count: int) -> list[bytes]:
    """The same so many bodies each time."""
    found: list[bytes] = []

    @settings(max_examples=count, phases=[Phase.generate], derandomize=True, database=None)
    @given(data=bodies(BODIES))
    def draw(data: bytes) -> None:
        found.append(data)

    draw()
    return found
