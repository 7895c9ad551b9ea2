"""Frames on their way to the client of a WebSocket: as fast as it takes them, and bounded."""

import asyncio
from collections import deque
from collections.abc import Mapping

import msgspec
from starlette.types import Send

from omnistage.server.http.sse import ClientTooSlow


class Outbox:
    """Frames that have not been sent yet: at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._frames: deque[tuple[str | bytes, object]] = deque()  # each with what it is of
        self._is_sending = False  # the first
        self._changed = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def max_bytes(self) -> int:
        """How much may wait."""
        return self._max_bytes

    def put(self, frame: str | bytes, source: object = None) -> None:
        """Add one, of a source that may withdraw it; ClientTooSlow if it is too much."""
        if self._num_bytes + len(frame) > self._max_bytes:
            raise ClientTooSlow(f"{self._num_bytes} bytes wait for the client")
        self._num_bytes += len(frame)
        self._frames.append((frame, source))
        self._is_empty.clear()
        self._changed.set()

    def tell(self, event: Mapping[str, object], source: object = None) -> None:
        """Add an event; bytes in it become base64."""
        self.put(msgspec.json.encode(event).decode(), source)

    def withdraw(self, source: object) -> int:
        """Drop the frames of a source that nobody has begun to send; returns how many they were."""
        begun = [self._frames.popleft()] if self._is_sending else []
        dropped = [frame for frame, of in self._frames if of is source]
        self._frames = deque([*begun, *(one for one in self._frames if one[1] is not source)])
        self._num_bytes -= sum(map(len, dropped))
        return len(dropped)

    async def empty(self) -> None:
        """Return once all has been sent."""
        await self._is_empty.wait()

    async def send_all(self, send: Send) -> None:
        """Send what comes, for ever."""
        while True:
            while self._frames:
                frame, _ = self._frames[0]
                kind = "text" if isinstance(frame, str) else "bytes"
                self._is_sending = True
                await send({"type": "websocket.send", kind: frame})
                self._is_sending = False
                self._frames.popleft()
                self._num_bytes -= len(frame)
            self._is_empty.set()
            self._changed.clear()
            await self._changed.wait()
