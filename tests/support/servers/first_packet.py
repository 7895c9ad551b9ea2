"""The time to the first packet of sound, measured on a socket with nothing between."""

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from omnistage.stages.messages.trace_context import TraceContext

SOUND = re.compile(rb'"data":"[^"]')
CONTEXT = re.compile(rb"traceparent: (\S+)")
TIMEOUT_S = 600


@dataclass(frozen=True)
class FirstPacket:
    """When it came, seconds after the request was sent, and the span of the request."""

    seconds: float
    span: TraceContext


class Speaker:
    """A connection that stays open, so that no request waits for one."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: dict[str, Any]) -> FirstPacket:
        """Stream a chat to its end."""
        content = json.dumps({**body, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        got, first_s = b"", None
        began = time.monotonic()
        self._socket.sendall(request)
        while not got.endswith(b"\r\n0\r\n\r\n"):
            data = self._socket.recv(1 << 16)
            assert data, got
            got += data
            if first_s is None and SOUND.search(got):
                first_s = time.monotonic() - began
        found = CONTEXT.search(got)
        assert found is not None, got
        assert first_s is not None, got
        span = TraceContext.parse(found[1].decode())
        assert span is not None
        return FirstPacket(first_s, span)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
