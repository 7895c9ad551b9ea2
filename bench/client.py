"""Sends requests for answers that stream, and records when the parts of those arrive.

A request starts when its body is written to its connection: neither making the connection is
counted nor waiting for other requests that are sent at the same moment.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpcore
import msgspec

from omnistage.bench.audio import AudioError
from omnistage.bench.events import DONE, LineReader, decode_event, error_message, payload
from omnistage.bench.network import StampedNetwork, StampedStream
from omnistage.bench.recording import AnswerError, Recording
from omnistage.bench.report import Sample

CONNECT_S = 10.0
OK = 200
NETWORK_ERRORS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class ServerError(ValueError):
    """A server that cannot be measured at all."""


def api_url(url: str) -> str:
    """A server's address with the API's /v1; raises ServerError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ServerError(f"{url!r} is no address of a server; one is http://HOST:PORT")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


class Client:
    """One server and one of its endpoints.

    There is a connection for each request in flight; they are kept and used again.

    Each connection is a pool of its own: a pool's search for a free connection takes longer with
    each that it has, so that 64 requests sent at once would wait for each other.
    """

    path = "chat/completions"

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout_s: float,
        network: httpcore.AsyncNetworkBackend,
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._network = network
        self._ssl_context = ssl.create_default_context()
        self._headers: dict[str | bytes, str | bytes] = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._all: list[httpcore.AsyncConnectionPool] = []
        self._idle: list[httpcore.AsyncConnectionPool] = []

    @contextlib.contextmanager
    def _connection(self) -> Iterator[httpcore.AsyncConnectionPool]:
        if not self._idle:
            made = httpcore.AsyncConnectionPool(
                self._ssl_context, max_connections=1, network_backend=self._network
            )
            self._all.append(made)
            self._idle.append(made)
        connection = self._idle.pop()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, path: str, content: bytes | None = None
    ) -> AsyncIterator[httpcore.Response]:
        timeouts = {"timeout": {"connect": CONNECT_S}}
        place = f"{self._url}/{path}"
        with self._connection() as connection:
            async with connection.stream(
                method, place, headers=self._headers, content=content, extensions=timeouts
            ) as response:
                yield response

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            await connection.aclose()

    async def first_model(self) -> str:
        """The first model that the server offers; raises ServerError."""
        place = f"{self._url}/models"
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._response("GET", "models") as response,
            ):
                content = await response.aread()
        except TimeoutError:
            raise ServerError(f"{place}: no answer within {self._timeout_s:g} s") from None
        except NETWORK_ERRORS as error:
            raise ServerError(f"{place}: {said_of(error)}") from None
        if response.status != OK:
            raise ServerError(f"{place}: HTTP {response.status}: {error_message(content)}")
        try:
            return str(json.loads(content)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ServerError(f"{place} lists no model; name one with --model") from None

    async def ask(
        self,
        number: int,
        body: Mapping[str, Any],
        level_start_s: float,
        due_s: float | None = None,
    ) -> Sample:
        """One request; whatever fails is the sample's error. With `due_s` it starts then."""
        loop = asyncio.get_running_loop()
        content = msgspec.json.encode(body)
        recording = Recording(loop.time())
        error: str | None = None
        end_s: float | None = None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._response("POST", self.path, content) as response,
            ):
                end_s = await self._receive(response, recording)
            recording.check(self._has_sound(body))
        except TimeoutError:
            error = f"no whole answer within {self._timeout_s:g} s"
        except NETWORK_ERRORS as failure:
            error = said_of(failure)
        except msgspec.MsgspecError as failure:
            error = f"the server sent no chat completion: {failure}"
        except (AnswerError, AudioError) as failure:
            error = str(failure)
        end_s = loop.time() if end_s is None else end_s
        recording.start_at(due_s)
        return recording.to_sample(number, level_start_s, end_s, error)

    def _has_sound(self, body: Mapping[str, Any]) -> bool:
        """Returns whether an answer without sound has failed."""
        return "audio" in body.get("modalities", ())

    async def _receive(self, response: httpcore.Response, recording: Recording) -> float:
        """Record an answer; when its last bytes came."""
        stream = response.extensions["network_stream"]
        assert isinstance(stream, StampedStream)
        recording.start_s = stream.written_s
        if response.status != OK:
            said = error_message(await response.aread())
            raise AnswerError(f"HTTP {response.status}: {said}")
        await self._read(response, recording, stream)
        return stream.read_s

    async def _read(
        self, response: httpcore.Response, recording: Recording, stream: StampedStream
    ) -> None:
        """The parts of an answer that has begun."""
        if not _is_event_stream(response):
            whole = await response.aread()
            recording.add(decode_event(whole), stream.read_s)
            return
        lines = LineReader()
        async for block in response.aiter_stream():
            for line in lines.feed(block):
                data = payload(line)
                if data and data != DONE:
                    recording.add(decode_event(data), stream.read_s)


def _is_event_stream(response: httpcore.Response) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in response.headers
    )


def said_of(error: Exception) -> str:
    """The kind of a failure and what the system said of it."""
    kind = type(error).__name__
    return f"{kind}: {error}" if str(error) else kind


@contextlib.asynccontextmanager
async def connected(
    url: str,
    api_key: str | None,
    timeout_s: float,
    network: httpcore.AsyncNetworkBackend | None = None,
    make: type[Client] = Client,
) -> AsyncIterator[Client]:
    """A client of the server at `url`, which ends in /v1."""
    client = make(url, api_key, timeout_s, network or StampedNetwork())
    try:
        yield client
    finally:
        await client.close()
