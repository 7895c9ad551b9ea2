"""Two web servers, one that may be asked and one that must not, and who was connected to."""

import asyncio
import contextlib
import gzip
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import httpx
from fastapi import Request
from starlette.types import Message
from support.hostile.bad_parts import good_png

from omnistage.server.http.request import HttpCaller
from omnistage.server.http.state import PLACE, RequestState
from omnistage.server.media.addresses import is_public
from omnistage.server.media.fetch import MediaFetcher, VettedTransport
from omnistage.server.media.incoming import Incoming
from omnistage.server.media.load import MediaLoader
from omnistage.server.tasks.chat.media_options import media_of

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"
BOMB = gzip.compress(bytes(64 << 20))
NAMES: dict[str, list[list[str]]] = {
    "outside.test": [[OUTSIDE]],
    "inside.test": [[INSIDE]],
    "inside6.test": [["::1"]],
    "mapped.test": [["::ffff:127.0.0.1"]],
    "metadata.test": [["169.254.169.254"]],
    "both.test": [[OUTSIDE, INSIDE]],
    "nothing.test": [[]],
    "rebind.test": [[OUTSIDE], [INSIDE]],
    "second.test": [[OUTSIDE], [OUTSIDE]],
}


class MediaHosts:
    """The servers on one port, names for them, and counts."""

    def __init__(self) -> None:
        self.port = 0
        self.lookups: Counter[str] = Counter()
        self.connected: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.heads: list[str] = []
        self.left = asyncio.Event()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Known names, and numbers as the system reads them; no other name is asked for."""
        self.lookups[host] += 1
        if host in NAMES:
            answers = NAMES[host]
            return answers[min(self.lookups[host], len(answers)) - 1]
        flags = socket.AI_NUMERICHOST
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=flags
        )
        return [str(place[0]) for *_, place in found]

    def fetcher(self, *domains: str, fetch_s: float = 60.0) -> MediaFetcher:
        """One that takes the outer server for public."""
        transport = VettedTransport(
            Recorder(self.connected),
            self.resolve,
            lambda address: address == OUTSIDE or is_public(address),
        )
        return MediaFetcher(domains, transport, fetch_s)

    def url(self, text: str) -> str:
        """Fill in the port."""
        return text.replace("PORT", str(self.port))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request by its path."""
        self.accepted[writer.get_extra_info("sockname")[0]] += 1
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await self._serve(self.heads[-1].split()[1], writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.left.set()

    async def _serve(self, path: str, writer: asyncio.StreamWriter) -> None:
        _, kind, *rest = path.split("/", 2)
        if kind == "to":
            _write_head(writer, "302 Found", f"Location: {self.url(unquote(rest[0]))}")
        elif kind == "hops":
            left = int(rest[0])
            where = f"/hops/{left - 1}" if left else "/picture"
            _write_head(writer, "302 Found", f"Location: {where}")
        elif kind == "loop":
            _write_head(writer, "301 Moved", "Location: /loop")
        elif kind == "missing":
            _write_head(writer, "404 Not Found", "Content-Length: 0")
        elif kind == "huge":
            _write_head(writer, "200 OK", f"Content-Length: {1 << 40}")
        elif kind == "gzip":
            _write_head(writer, "200 OK", "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")
            writer.write(BOMB)
        elif kind == "cookie":
            _write_head(writer, "302 Found", "Set-Cookie: a=b", "Location: /picture")
        elif kind == "nonsense":
            writer.write(b"\0\1\2 hello\r\n\r\n")
        elif kind == "cut":
            _write_head(writer, "200 OK", "Content-Length: 9999")
            writer.write(b"x")
        elif kind in ("drip", "endless", "headers"):
            await _go_on(writer, kind)
        else:
            data = good_png()
            _write_head(writer, "200 OK", f"Content-Length: {len(data)}")
            writer.write(data)
        await writer.drain()


async def _go_on(writer: asyncio.StreamWriter, kind: str) -> None:
    """Until the client leaves."""
    writer.write(b"HTTP/1.1 200 OK\r\n" if kind == "headers" else b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write({"drip": b"x", "endless": bytes(1 << 14), "headers": b"A: b\r\n"}[kind])
        await writer.drain()
        await asyncio.sleep(0 if kind == "endless" else 0.01)


def _write_head(writer: asyncio.StreamWriter, status: str, *lines: str) -> None:
    writer.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "Connection: close", "", ""]).encode())


class Recorder(httpx.AsyncBaseTransport):
    """Counts the addresses that somebody connects to."""

    def __init__(self, connected: Counter[str]) -> None:
        self._inner = httpx.AsyncHTTPTransport(trust_env=False)
        self._connected = connected

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Count and send."""
        self._connected[request.url.host] += 1
        return await self._inner.handle_async_request(request)


@contextlib.asynccontextmanager
async def media_hosts() -> AsyncIterator[MediaHosts]:
    """Both servers, while the context lasts."""
    hosts = MediaHosts()
    inside = await asyncio.start_server(hosts.answer, INSIDE, 0)
    hosts.port = inside.sockets[0].getsockname()[1]
    outside = await asyncio.start_server(hosts.answer, OUTSIDE, hosts.port)
    async with inside, outside:
        yield hosts


class Client:
    """One who waits, until it hangs up."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def request(self, timeout_s: float | None = None) -> Request:
        """What the server has of it."""
        state = RequestState()
        if timeout_s is not None:
            state.due_at = asyncio.get_running_loop().time() + timeout_s
        return Request({"type": "http", PLACE: state}, self._receive)

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def loaded(loader: MediaLoader, body: Mapping[str, Any], http: Request) -> Incoming | None:
    """A chat's media, as long as its client waits."""
    return await HttpCaller(http).wait(loader.load_all(media_of(body)))
