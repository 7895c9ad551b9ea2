"""HTTP by uvicorn: bounds heads, and answers unreadable bytes with OpenAI's envelope."""

import asyncio
import sys
from http import HTTPStatus
from typing import Protocol

import msgspec
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from omnistage.server.common.errors import ApiError
from omnistage.server.http.protocol.head_limit import (
    MAX_HEAD_BYTES,
    SOCKET_LIMITS,
    fits_socket,
    head_too_large,
)
from omnistage.server.http.refusal import LINGER_S

TOO_LARGE = 431


class Cycle(Protocol):
    """A request of uvicorn's with its answer."""

    more_body: bool
    disconnected: bool
    response_complete: bool
    message_event: asyncio.Event


class RefusingProtocol(asyncio.Protocol):
    """Goes before one of uvicorn's HTTP protocols and refuses what it cannot read."""

    headers: list[tuple[bytes, bytes]]
    cycle: Cycle | None  # of the last request that came
    transport: asyncio.Transport
    _has_refused = False

    def data_received(self, data: bytes) -> None:
        """Read, but nothing behind what was refused."""
        if not self._has_refused:
            super().data_received(data)

    def handle_websocket_upgrade(self, *event: object) -> None:
        """Hand the connection over, unless an answer before it is still being written."""
        if self._is_answering:
            self._refuse(ApiError(400, "A WebSocket cannot begin here.", code="invalid_http"))
        elif not fits_socket(self.headers):
            self._refuse(head_too_large(SOCKET_LIMITS))
        else:
            super().handle_websocket_upgrade(*event)  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:
        """Refuse what came; h11 has a hint for a long head, httptools no URL."""
        hint, url = getattr(sys.exception(), "error_status_hint", 400), getattr(self, "url", b"")
        if hint == TOO_LARGE or len(url) > MAX_HEAD_BYTES:
            self._refuse(head_too_large())
        else:
            self._refuse(ApiError(400, msg, code="invalid_http"))

    def on_response_complete(self) -> None:
        """Begin the next request; close behind the last before what was refused."""
        super().on_response_complete()  # type: ignore[misc]
        if self._has_refused and not self._is_answering:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        """Returns whether some request that came whole has no whole answer yet."""
        if getattr(self, "pipeline", ()):  # httptools': behind the one that is being answered
            return True
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _refuse(self, error: ApiError) -> None:
        """Send an error and read on for a while; nothing amid the answer to an earlier request."""
        self._has_refused = True
        if self._is_answering:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the app's own answer would come too late
            self.cycle.message_event.set()
        body = msgspec.json.encode(error.envelope)
        status = f"{error.status} {HTTPStatus(error.status).phrase}"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)


class BoundedHeads(RefusingProtocol):
    """The same for httptools, which bounds neither heads nor trailers; h11 does."""

    _num_bytes = 0  # that have come since anything was read whole, or of a body

    def data_received(self, data: bytes) -> None:
        """Read, and refuse a head that goes on without an end."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD_BYTES and not self._has_refused:
            self._refuse(head_too_large())

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._num_bytes = 0
        super().on_headers_complete()  # type: ignore[misc]

    def on_body(self, body: bytes) -> None:
        """Take a piece of its body."""
        self._num_bytes = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """End it."""
        self._num_bytes = 0
        super().on_message_complete()  # type: ignore[misc]


def refusing(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """Returns one of uvicorn's HTTP protocols with bounded heads and OpenAI's errors."""
    base = BoundedHeads if hasattr(protocol, "on_headers_complete") else RefusingProtocol
    return type(f"Refusing{protocol.__name__}", (base, protocol), {})


GATEWAY_PROTOCOL = refusing(AutoHTTPProtocol)
