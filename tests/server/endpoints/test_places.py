"""A request keeps its place from its admission to the end of its answer, on every endpoint."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request as HttpRequest
from fastapi import Response
from support.fakes.stages import WORDS, FakeGraph
from support.gateway.serving import (
    IMAGES,
    MODEL,
    OMNI,
    RunningGateway,
    SharedConnector,
    running_gateway,
)
from support.media.pictures import png

from omnistage.server.common.errors import ApiError
from omnistage.server.common.memory import GivingBack
from omnistage.server.endpoints.audio.speech import SpeechEndpoint
from omnistage.server.endpoints.gateway import Gateway, make_gateway
from omnistage.server.endpoints.images.image_form import ImageForm
from omnistage.server.endpoints.images.images import Images
from omnistage.server.endpoints.text.chat import ChatCompletions
from omnistage.server.endpoints.text.text_completions import TextCompletions
from omnistage.server.http.state import PLACE, RequestState
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat.completion_fields import CompletionRequest
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.images.schema import GenerationRequest
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.stage_configs.graph import StageGraph

TURN = [{"role": "user", "content": "words"}]
Ask = Callable[[Gateway, HttpRequest], Awaitable[Response]]


# The answer of the first begins after the second was refused


def gateway_of(runtime: Runtime) -> Gateway:
    return make_gateway(runtime, GatewayOptions(), GivingBack())


def chat(gateway: Gateway, http: HttpRequest) -> Awaitable[Response]:
    asked = ChatRequest.model_validate({"messages": TURN, "stream": True})
    return ChatCompletions(gateway).create(asked, http)


def image_chat(gateway: Gateway, http: HttpRequest) -> Awaitable[Response]:
    asked = ChatRequest.model_validate({"messages": TURN, "stream": True, "modalities": ["image"]})
    return ChatCompletions(gateway).create(asked, http)


def completion(gateway: Gateway, http: HttpRequest) -> Awaitable[Response]:
    asked = CompletionRequest.model_validate({"prompt": "words", "stream": True})
    return TextCompletions(gateway).create(asked, http)


def speech(gateway: Gateway, http: HttpRequest) -> Awaitable[Response]:
    asked = SpeechRequest.model_validate({"input": "words", "stream_format": "sse"})
    return SpeechEndpoint(gateway).create(asked, http)


def image(gateway: Gateway, http: HttpRequest) -> Awaitable[Response]:
    asked = GenerationRequest.model_validate({"prompt": "words", "stream": True})
    return Images(gateway).answer("image_generation", ImageForm(asked, (), None), http)


@contextmanager
def http_request() -> Iterator[HttpRequest]:
    """One below the middleware that closes what requests hold."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    state = RequestState()
    with state.at_end:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
        yield HttpRequest({**scope, PLACE: state}, receive)


async def body_of(response: Response, http: HttpRequest) -> str:
    """What is sent of an answer with status 200."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def still_there() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    await response(http.scope, still_there, send)
    assert sent[0]["status"] == 200
    return b"".join(message.get("body", b"") for message in sent).decode()


@pytest.mark.parametrize(
    ("graph", "ask", "end"),
    [
        (OMNI, chat, "data: [DONE]"),
        (OMNI, completion, "data: [DONE]"),
        (OMNI, speech, "speech.audio.done"),
        (IMAGES, image, "image_generation.completed"),
        (IMAGES, image_chat, "data: [DONE]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_who_was_admitted_is_answered_whole_whoever_comes_before_it_runs(
    tmp_path: Path, graph: dict[str, Any], ask: Ask, end: str
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    parsed = StageGraph.model_validate(graph)
    async with Runtime(parsed, tmp_path, stages.launch, shared, 1) as runtime:
        await runtime.fleet.loaded()
        gateway = gateway_of(runtime)
        with http_request() as first:
            answer = await ask(gateway, first)
            with http_request() as second, pytest.raises(ApiError) as refused:
                await ask(gateway, second)
            assert (refused.value.status, refused.value.code) == (503, "server_overloaded")
            body = await body_of(answer, first)
            assert end in body
            assert '"error"' not in body
            assert runtime.flights.num_running == 1  # until its client has read all of it
        assert runtime.flights.num_running == runtime.flights.num_waiting == 0
        with http_request() as unread:
            await ask(gateway, unread)  # whose client has gone: nobody asks for its events
        with http_request() as last:
            assert end in await body_of(await ask(gateway, last), last)


# Over a socket


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("omni"), OMNI, max_requests=1) as running:
        yield running


@pytest.fixture(scope="module")
def small_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("images"), IMAGES, max_requests=1) as running:
        yield running


def assert_overloaded(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "server_overloaded"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": TURN, "stream": True}),
        ("chat/completions", {"messages": TURN}),
        ("completions", {"prompt": "words", "stream": True}),
        ("completions", {"prompt": "words"}),
        ("audio/speech", {"input": "words"}),
        ("audio/transcriptions", None),
        ("audio/translations", None),
    ],
)
def test_a_second_is_refused_before_its_200_and_the_first_is_answered_whole(
    small: RunningGateway, path: str, body: dict[str, Any] | None
) -> None:
    slow = [{"role": "user", "content": "breathe"}]
    asked = {"model": MODEL, "messages": slow, "stream": True}
    with (
        httpx.Client(base_url=f"{small.url}/v1/", timeout=600) as client,
        client.stream("POST", "chat/completions", json=asked) as first,
    ):
        assert first.status_code == 200
        if body is None:
            sound = {"file": ("a.wav", b"RIFF")}  # refused before anyone reads it
            assert_overloaded(client.post(path, data={"model": MODEL}, files=sound))
        else:
            assert_overloaded(client.post(path, json={"model": MODEL, **body}))
        for _ in WORDS:
            small.wait_until_waiting()
            small.go_on()
        lines = [line.removeprefix("data: ") for line in first.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    deltas = [choice["delta"] for line in lines[:-1] for choice in json.loads(line)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "".join(WORDS)


@pytest.mark.parametrize("path", ["images/generations", "images/edits", "chat/completions"])
def test_a_second_picture_is_refused_before_its_200(
    small_images: RunningGateway, path: str
) -> None:
    with (
        httpx.Client(base_url=f"{small_images.url}/v1/", timeout=600) as client,
        client.stream(
            "POST",
            "images/generations",
            json={"prompt": "hang", "stream": True, "partial_images": 1},
        ) as first,
    ):
        assert first.status_code == 200
        if path == "images/edits":
            files = {"image": ("a.png", png(48, 32))}
            assert_overloaded(client.post(path, data={"prompt": "a hat"}, files=files))
        elif path == "chat/completions":
            assert_overloaded(client.post(path, json={"messages": TURN}))
        else:
            assert_overloaded(client.post(path, json={"prompt": "a hat"}))
