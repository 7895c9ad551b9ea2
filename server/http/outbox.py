"""Frames on their way to the client of a WebSocket: as fast as it takes them, and bounded."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

from omnistage.server.http.sse import ClientTooSlow


class Outbox:
    """Frames that have not been sent yet: at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._frames: deque[str | bytes] = deque()
        self._changed = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def put(self, frame: str | bytes) -> None:
        """Add one; ClientTooSlow if it is too much."""
        if self._num_bytes + len(frame) > self._max_bytes:
            raise ClientTooSlow(f"{self._num_bytes} bytes wait for the client")
        self._num_bytes += len(frame)
        self._frames.append(frame)
        self._is_empty.clear()
        self._changed.set()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Add an event; bytes in it become base64."""
        self.put(msgspec.json.encode(event).decode())

    async def empty(self) -> None:
        """Return once all has been sent."""
        await self._is_empty.wait()

    async def send_all(self, send: Send) -> None:
        """Send what comes, for ever."""
        while True:
            while self._frames:
                frame = self._frames[0]
                kind = "text" if isinstance(frame, str) else "bytes"
                await send({"type": "websocket.send", kind: frame})
                self._frames.popleft()
                self._num_bytes -= len(frame)
            self._is_empty.set()
            self._changed.clear()
            await self._changed.wait()
