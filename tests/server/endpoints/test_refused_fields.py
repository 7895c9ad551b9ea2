"""Fields that are refused or ignored, at every endpoint, with every kind of value.

A refused field's default passes; any other value is a 400 that names it. 0, false and what is
empty are values as others. An ignored field passes whatever it says, and docs/api.md lists it.
"""

import contextlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.gateway.serving import EMBEDDING, MODEL, OMNI, running_gateway
from support.media.sounds import tone, wav_of
from websockets.sync.client import connect

import omnistage.server
from omnistage.server.common.fields import Refused, RequestFields
from omnistage.server.endpoints.audio.speech_stream_fields import SessionConfig
from omnistage.server.responses.schema import (
    NOT_HERE,
    ReasoningOptions,
    ResponseRequest,
    TextOptions,
)
from omnistage.server.tasks.chat.completion_fields import CompletionRequest
from omnistage.server.tasks.chat.fields import OF_CHATS
from omnistage.server.tasks.chat.schema import ChatRequest, Sampling
from omnistage.server.tasks.chat.token_fields import TokenizeRequest
from omnistage.server.tasks.embeddings import EmbeddingRequest
from omnistage.server.tasks.images.schema import ImageRequest
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech.voice_fields import VoiceRequest
from omnistage.stages.messages.to_gateway import Speech

API = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
VALUES: tuple[Any, ...] = (False, True, 0, 1, 0.0, 0.5, "", "x", [], ["x"], {}, {"x": 1})
CLONING = Speech(["English"], takes_sound=True, needs_sound=True)
WAV = wav_of(tone())

Answer = tuple[int, str | None]
"""The status, and the field that is blamed."""
Door = Callable[[httpx.Client, Mapping[str, Any]], Answer]


def posts(path: str, body: Mapping[str, Any]) -> Door:
    def ask(client: httpx.Client, fields: Mapping[str, Any]) -> Answer:
        response = client.post(path, json={**body, **fields})
        error = response.json()["error"] if response.status_code >= 400 else {}
        return response.status_code, error.get("param")

    return ask


def store(client: httpx.Client, fields: Mapping[str, Any]) -> Answer:
    """A voice, by a form, in which all values are words."""
    url = "/v1/audio/voices"
    form = {"name": "Mine", "consent": "yes", **fields}
    parts: dict[str, Any] = {
        name: (None, value if isinstance(value, str) else json.dumps(value))
        for name, value in form.items()
        if value is not None
    }
    response = client.post(url, files={**parts, "audio_sample": ("a", WAV)})
    if response.status_code == 200:
        client.delete(f"{url}/{response.json()['id']}")
        return 200, None
    return response.status_code, response.json()["error"]["param"]


def configure(client: httpx.Client, fields: Mapping[str, Any]) -> Answer:
    """The first event of a WebSocket; one that is taken is followed by a text that is spoken."""
    url = str(client.base_url.copy_with(scheme="ws", path="/v1/audio/speech/stream"))
    first = {"type": "session.config", "model": MODEL, "voice": "ethan", **fields}
    with connect(url, compression=None) as ws:
        for event in (first, {"type": "input.text", "text": "a"}, {"type": "input.done"}):
            ws.send(json.dumps(event))
        for frame in ws:
            answer: dict[str, Any] = {} if isinstance(frame, bytes) else json.loads(frame)
            if answer.get("type") == "error":
                return 400, answer["error"]["param"]
            if answer.get("type") == "session.done":
                return 200, None
    raise AssertionError("the connection ended without an answer")


RESPONSE = posts("/v1/responses", {"model": MODEL, "input": "words"})
DOORS: dict[type[RequestFields], tuple[str, Door]] = {
    ChatRequest: ("omni", posts("/v1/chat/completions", CHAT)),
    CompletionRequest: ("omni", posts("/v1/completions", {"model": MODEL, "prompt": "words"})),
    ResponseRequest: ("omni", RESPONSE),
    EmbeddingRequest: ("embedding", posts("/v1/embeddings", {"model": MODEL, "input": "a"})),
    TokenizeRequest: ("omni", posts("/tokenize", CHAT)),
    SpeechRequest: (
        "omni",
        posts("/v1/audio/speech", {"model": MODEL, "input": "a", "voice": "ethan"}),
    ),
    SessionConfig: ("omni", configure),
    VoiceRequest: ("cloning", store),
}


def refused_by(kind: type[RequestFields]) -> Refused:
    """All fields that an endpoint refuses; what it has a field of its own for is no such."""
    others = {name: kind.refused[name] for name in kind.refused.keys() - kind.model_fields.keys()}
    return {**others, **NOT_HERE} if kind is ResponseRequest else others


CASES = [(kind, name) for kind in DOORS for name in sorted(refused_by(kind))]
IGNORED_CASES = [(kind, name) for kind in DOORS for name in sorted(kind.ignored - {"type"})]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    graphs: dict[str, tuple[Any, dict[str, Any]]] = {
        "omni": (OMNI, {}),
        "embedding": (EMBEDDING, {}),
        "cloning": (OMNI, {"speech": CLONING, "speakers": []}),
    }
    with contextlib.ExitStack() as stack:
        made = {}
        for name, (graph, options) in graphs.items():
            folder = tmp_path_factory.mktemp(name)
            running = stack.enter_context(running_gateway(folder, graph, arena_mb=8, **options))
            made[name] = stack.enter_context(
                httpx.Client(base_url=running.url, timeout=600, limits=ONE_SHOT)
            )
        yield made


def is_same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other) or (
        not isinstance(one, bool) and not isinstance(other, bool) and bool(one == other)
    )


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_a_refused_field_s_default_passes_and_any_other_value_is_a_400_that_names_it(
    kind: type[RequestFields], name: str, clients: dict[str, httpx.Client]
) -> None:
    graph, ask = DOORS[kind]
    nothing = (None, *refused_by(kind)[name])
    for value in (*VALUES, *nothing):
        answer = ask(clients[graph], {name: value})
        if any(is_same(value, one) for one in nothing):
            assert answer == (200, None), (name, value)
        else:
            assert answer == (400, name), (name, value)


@pytest.mark.parametrize(
    ("kind", "name"), IGNORED_CASES, ids=lambda one: getattr(one, "__name__", one)
)
def test_an_ignored_field_passes_whatever_it_says(
    kind: type[RequestFields], name: str, clients: dict[str, httpx.Client]
) -> None:
    graph, ask = DOORS[kind]
    values: tuple[Any, ...] = (None, False, 0, "", "x", [])
    for value in values:
        assert ask(clients[graph], {name: value}) == (200, None), (name, value)


def kinds() -> set[type[RequestFields]]:
    """Every class of a request, or of options of one, in the gateway."""
    for module in pkgutil.walk_packages(omnistage.server.__path__, "omnistage.server."):
        if not module.name.endswith((".__main__", ".ray")):  # a command; what needs Ray
            import_module(module.name)
    found, new = set(), {RequestFields}
    while new:
        found |= new
        new = {sub for one in new for sub in one.__subclasses__()} - found
    return {one for one in found if one.__module__.startswith("omnistage.server")}


def test_every_request_that_refuses_fields_is_asked_here() -> None:
    assert {kind for kind in kinds() if kind.refused} == DOORS.keys()


def test_the_documentation_lists_every_ignored_field() -> None:
    lines = [line for line in API.splitlines() if "without effect" in line or "no effect" in line]
    listed = {name for line in lines for name in re.findall(r"`([a-z_]+)`", line)}
    ignoring = {kind for kind in kinds() if kind.ignored}
    assert ignoring >= {ChatRequest, ReasoningOptions, TextOptions, ImageRequest, SessionConfig}
    assert set().union(*(kind.ignored for kind in ignoring)) - {"type"} <= listed


def test_the_fields_of_chats_alone_are_all_of_them() -> None:
    assert OF_CHATS.keys() == ChatRequest.model_fields.keys() - Sampling.model_fields.keys()
