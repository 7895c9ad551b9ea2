"""Server-sent events as OpenAI's clients read them: data lines, comments to stay alive, [DONE]."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnistage.server.disconnect import ClientGone, unless_gone
from omnistage.server.errors import ApiError, internal_error

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

Event = Mapping[str, Any]


def encode_event(event: Event) -> bytes:
    """One event; bytes in it become base64."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


class EventStream(Response):
    """Sends events as they come.

    The status waits for the first event, so that a request which a stage refuses gets its real
    status; when that takes longer than a keep-alive, 200 goes out and a failure becomes an event.
    """

    def __init__(self, events: AsyncGenerator[Event, None], keep_alive_s: float) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client end."""
        self._is_started = False
        try:
            refusal = await unless_gone(receive, self._send_all(send))
        except ClientGone:
            logger.info("%s: the client hung up (499)", scope["path"])
            return
        if refusal is not None:
            await refusal.to_response()(scope, receive, send)

    async def _send_all(self, send: Send) -> ApiError | None:
        """A refusal comes back if nothing was sent before it."""
        try:
            async with aclosing(self._events) as events:
                await self._send_events(events, send)
        except Exception as error:
            if not isinstance(error, ApiError):
                logger.exception("a stream failed")
            told = error if isinstance(error, ApiError) else internal_error()
            if not self._is_started:
                return told
            await self._send(send, encode_event(told.envelope))
        await self._send(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _send_events(self, events: AsyncGenerator[Event, None], send: Send) -> None:
        while True:
            coming = asyncio.create_task(_next(events))
            try:
                while not (await asyncio.wait({coming}, timeout=self._keep_alive_s))[0]:
                    await self._send(send, KEEP_ALIVE)
                event = coming.result()
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            if event is None:
                return
            await self._send(send, encode_event(event))

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._is_started:
            self._is_started = True
            headers = self.raw_headers
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)
