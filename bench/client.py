"""Sends chat requests and records when the parts of their answers arrive.

A request starts when its body is about to be written to its connection: making the connection is
not counted, nor is waiting for the other requests that are sent at the same moment. An arrival is
stamped when its bytes are handed over, before anything of them is parsed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from omnistage.bench.audio import AudioError
from omnistage.bench.events import DONE, Lines, decode_event, error_message, payload
from omnistage.bench.recording import AnswerError, Recording
from omnistage.bench.report import Sample

CONNECT_S = 10.0
SENDING = "http11.send_request_body.started"  # httpcore's name


class ServerError(ValueError):
    """A server that cannot be measured at all."""


def api_url(url: str) -> str:
    """A server's address with the API's /v1; raises ServerError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ServerError(f"{url!r} is no address of a server; one is http://HOST:PORT")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


class ChatClient:
    """One server, with a connection for each request in flight; they are kept and used again.

    A connection is an AsyncClient of its own: a pool's search for a free connection takes longer
    with each that it has, so that 64 requests sent at once would wait for each other.
    """

    def __init__(self, options: Mapping[str, Any], timeout_s: float) -> None:
        self._options = options
        self._timeout_s = timeout_s
        self._all: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []

    @contextlib.contextmanager
    def _connection(self) -> Iterator[httpx.AsyncClient]:
        if not self._idle:
            self._idle.append(httpx.AsyncClient(**self._options))
            self._all.append(self._idle[-1])
        connection = self._idle.pop()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            await connection.aclose()

    async def first_model(self) -> str:
        """The first model that the server offers; raises ServerError."""
        place = f"{self._options['base_url']}/models"
        try:
            with self._connection() as connection:
                response = await connection.get("models")
            if response.status_code != httpx.codes.OK:
                said = error_message(response.content)
                raise ServerError(f"{place}: HTTP {response.status_code}: {said}")
            return str(response.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise ServerError(f"{place}: {said_of(error)}") from None
        except (ValueError, LookupError, TypeError) as error:
            if isinstance(error, ServerError):
                raise
            raise ServerError(f"{place} lists no model; name one with --model") from None

    async def ask(self, number: int, body: Mapping[str, Any], level_start_s: float) -> Sample:
        """One request; whatever fails is the sample's error."""
        loop = asyncio.get_running_loop()
        content = msgspec.json.encode(body)
        recording = Recording(loop.time())
        error: str | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._record(recording, content)
            recording.check("audio" in body.get("modalities", ()))
        except TimeoutError:
            error = f"no whole answer within {self._timeout_s:g} s"
        except httpx.HTTPError as failure:
            error = said_of(failure)
        except msgspec.MsgspecError as failure:
            error = f"the server sent no chat completion: {failure}"
        except (AnswerError, AudioError) as failure:
            error = str(failure)
        return recording.to_sample(number, level_start_s, loop.time(), error)

    async def _record(self, recording: Recording, content: bytes) -> None:
        loop = asyncio.get_running_loop()

        async def trace(name: str, info: Mapping[str, Any]) -> None:
            if name == SENDING:
                recording.start_s = loop.time()

        with self._connection() as connection:
            posted = connection.stream(
                "POST", "chat/completions", content=content, extensions={"trace": trace}
            )
            async with posted as response:
                await _receive(response, recording)


async def _receive(response: httpx.Response, recording: Recording) -> None:
    loop = asyncio.get_running_loop()
    if response.status_code != httpx.codes.OK:
        said = error_message(await response.aread())
        raise AnswerError(f"HTTP {response.status_code}: {said}")
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        whole = await response.aread()
        recording.take(decode_event(whole), loop.time())
        return
    lines = Lines()
    async for block in response.aiter_raw():
        at_s = loop.time()
        for line in lines.feed(block):
            data = payload(line)
            if data and data != DONE:
                recording.take(decode_event(data), at_s)


def said_of(error: httpx.HTTPError) -> str:
    """The kind of a failure and what the system said of it."""
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    kind = type(error).__name__
    return f"{kind}: {cause}" if str(cause) else kind


@contextlib.asynccontextmanager
async def connected(
    url: str,
    api_key: str | None,
    timeout_s: float,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[ChatClient]:
    """A client of the server at `url`, which ends in /v1."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    options = {
        "base_url": url,
        "headers": headers,
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
        "transport": transport,
        "trust_env": False,
        "verify": httpx.create_ssl_context(),
    }
    client = ChatClient(options, timeout_s)
    try:
        yield client
    finally:
        await client.close()
