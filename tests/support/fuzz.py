"""Mutated chat bodies: some are answers' worth, most are not."""

import copy
import json
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.bad_input import good_png, good_wav, url_part
from support.gateway import MODEL
from support.prompts import sound, sound_part

from omnistage.server.fields import DONE, IGNORED, REFUSED
from omnistage.server.messages import ROLES

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
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1 << 63, 1 << 64, 10**30])
    | st.floats()
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.one_of(st.sampled_from(sorted(DONE | IGNORED | REFUSED)), texts)


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
    data = json.dumps(body).encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data


def drawn(count: int) -> list[bytes]:
    """The same so many bodies each time."""
    found: list[bytes] = []

    @settings(max_examples=count, phases=[Phase.generate], derandomize=True, database=None)
    @given(data=bodies(BODIES))
    def draw(data: bytes) -> None:
        found.append(data)

    draw()
    return found
