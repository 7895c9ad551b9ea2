"""Clients that have sent all and shut down their sending side, told from those that hung up.

Both send the same FIN. Only to data does the system of one that hung up answer, with a reset. Every
answer begins with `HTTP/1.1 `, and a chunk's size may begin with zeros: so some bytes of an answer
can leave before what comes next is known, one as soon as the FIN has come, more at growing
intervals.
"""

import asyncio
import socket
import sys
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from omnistage.server.errors import ApiError
from omnistage.server.http.head_limit import (
    MAX_HEAD_BYTES,
    SOCKET_LIMITS,
    fits_socket,
    head_too_large,
)
from omnistage.server.http.refusal import LINGER_S
from omnistage.server.http.socket_protocol import SPEECH_STREAM

START = b"HTTP/1.1 "
INTERIM = START + b"1"
CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
ZEROS = b"0" * 8  # readers take sizes of sixteen digits
LOOK_S = 0.1
FIRST_WAIT_S = 1.0  # from the first byte to the second; each wait is twice the one before
TOO_LARGE = 431
# States of Linux's sockets, the first byte of TCP_INFO.
TCP_CLOSE, TCP_CLOSE_WAIT = 7, 8


class Wire:
    """A transport that can send the first bytes of an answer, or of its next chunk, ahead of it."""

    def __init__(self, transport: asyncio.Transport, protocol: "HalfOpen") -> None:
        self._transport = transport
        self._protocol = protocol
        self.end_answer()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def end_answer(self) -> None:
        """The next bytes begin another one."""
        self.is_amid = False
        self._ahead = START
        self._num_ahead = 0

    def write(self, data: bytes) -> None:
        """Send a head, or a whole piece of a body, without what has left before."""
        if not data:
            return
        sent = 0 if self.is_amid else self._num_ahead
        if not self.is_amid and not data.startswith(INTERIM):
            self.is_amid = True
            self._ahead = ZEROS if CHUNKED in data.lower() else b""
        self._num_ahead = 0
        self._transport.write(data[sent:])

    def pause_reading(self) -> None:
        """Nobody reads now that the client leaves: look for it."""
        self._transport.pause_reading()
        self._protocol.begin_looking()

    @property
    def unwrapped(self) -> asyncio.Transport:
        """The transport itself."""
        return self._transport

    def probe(self) -> bool:
        """Send one byte ahead; False if there is none left."""
        if self._num_ahead == len(self._ahead):
            return False
        self._transport.write(self._ahead[self._num_ahead : self._num_ahead + 1])
        self._num_ahead += 1
        return True

    @property
    def is_encrypted(self) -> bool:
        """Whether it is one of TLS."""
        return self._transport.get_extra_info("ssl_object") is not None

    @property
    def state(self) -> int:
        """What the kernel says of the connection."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        if connection.fileno() < 0:
            return TCP_CLOSE
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


class Cycle(Protocol):
    """What uvicorn knows of a request and its answer."""

    more_body: bool
    disconnected: bool
    response_started: bool
    response_complete: bool
    message_event: asyncio.Event


class HalfOpen(asyncio.Protocol):
    """What one of uvicorn's HTTP protocols needs before it to answer such clients."""

    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    cycle: Cycle | None  # of the last request that came
    transport: asyncio.Transport
    _started: Cycle | None = None  # httptools': of the request that is being answered
    _wire: Wire
    _looking: asyncio.TimerHandle | None = None
    _wait_s = FIRST_WAIT_S
    _probe_at = 0.0
    _has_ended = False  # what comes from the client, as HTTP

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Put the wire in between."""
        self._wire = Wire(cast(asyncio.Transport, transport), self)
        super().connection_made(cast(asyncio.BaseTransport, self._wire))

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more; the app hears of it also when another request waits behind its own."""
        if self._looking is not None:
            self._looking.cancel()
        if self._started is not None:
            _disconnect(self._started)
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Cycle, app: Any) -> None:
        self._started = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[misc]

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """From here on the connection is a WebSocket's, whose bytes are no answers of HTTP."""
        if not fits_socket(self.headers):
            self._refuse(head_too_large(SOCKET_LIMITS), LINGER_S)
            return
        if self._looking is not None:
            self._looking.cancel()
        self._has_ended = True
        self.transport = self._wire.unwrapped
        super().handle_websocket_upgrade(*event)  # type: ignore[misc]

    def _should_upgrade_to_ws(self) -> bool:
        """Whether a WebSocket is offered where there is one; httptools' knows the URL alone yet.

        Not behind a request that is being answered: its answer would be amid the frames.
        """
        if self._is_answering:
            return False
        target: bytes = getattr(self, "url", None) or self.scope["raw_path"]
        path = target.partition(b"?")[0]
        return path.endswith(SPEECH_STREAM.encode())

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to upgrade may be passed over."""

    def data_received(self, data: bytes) -> None:
        """Read, but nothing behind what cannot be read."""
        if not self._has_ended:
            super().data_received(data)

    def eof_received(self) -> bool:
        """Whether there are answers to wait for; a connection with TLS ends with either side."""
        self._has_ended = True
        if self._wire.is_encrypted:
            return False
        if self._is_answering:
            self.begin_looking()
            return True
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_started:
            self.send_400_response("The connection ended before the body did.")
        return False

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with what came; h11 has a hint for a long head, httptools no URL."""
        hint, url = getattr(sys.exception(), "error_status_hint", 400), getattr(self, "url", b"")
        if hint == TOO_LARGE or len(url) > MAX_HEAD_BYTES:
            self.refuse_head()
        else:
            self._refuse(ApiError(400, msg, code="invalid_http"))

    def refuse_head(self) -> None:
        """Answer a head without an end, and read on for a while: the client may still send it."""
        self._refuse(head_too_large(), LINGER_S)

    def _refuse(self, error: ApiError, linger_s: float = 0.0) -> None:
        """Answer what cannot be read, after the answers to what came before it."""
        self._has_ended = True
        if self._is_answering or self._wire.is_amid:
            return
        if self.cycle is not None:  # the app's own answer would come too late
            _disconnect(self.cycle)
        body = msgspec.json.encode(error.envelope)
        status = f"{error.status} {HTTPStatus(error.status).phrase}"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        if linger_s:
            asyncio.get_running_loop().call_later(linger_s, self.transport.close)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Go on with the next request; close behind the last."""
        self._wire.end_answer()
        super().on_response_complete()  # type: ignore[misc]
        if self._has_ended and not self._is_answering:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        """Whether some request that came whole has no whole answer yet."""
        if getattr(self, "pipeline", ()):  # httptools': behind the one that is being answered
            return True
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def begin_looking(self) -> None:
        """Look from time to time whether the client is there, until its bytes are read again."""
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        self._looking = None
        state = self._wire.state
        if self.transport.is_closing():
            return
        if state == TCP_CLOSE:
            self.transport.abort()
            return
        if state != TCP_CLOSE_WAIT and self.transport.is_reading():
            return
        loop = asyncio.get_running_loop()
        pause_s = LOOK_S
        if state == TCP_CLOSE_WAIT and self._is_answering and loop.time() >= self._probe_at:
            self._probe_at = loop.time() + self._wait_s
            if self._wire.probe():
                self._wait_s *= 2
                pause_s /= 10  # a client nearby answers at once
        self._looking = loop.call_later(pause_s, self._look)


def _disconnect(cycle: Cycle) -> None:
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


class BoundedHeads(HalfOpen):
    """The same for httptools, which bounds neither heads nor trailers; h11 does."""

    _num_bytes = 0  # that have come since anything was read whole, or of a body

    def data_received(self, data: bytes) -> None:
        """Read, and refuse what goes on without an end."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD_BYTES and not self._has_ended:
            self.refuse_head()

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


def half_open(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """One of uvicorn's HTTP protocols that answers clients which have shut down their side."""
    base = BoundedHeads if hasattr(protocol, "on_headers_complete") else HalfOpen
    return type(f"HalfOpen{protocol.__name__}", (base, protocol), {})


GATEWAY_PROTOCOL = half_open(AutoHTTPProtocol)
