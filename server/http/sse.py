"""Server-sent events as OpenAI's clients read them: data lines, comments to stay alive, [DONE]."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.common.outcome import Outcome
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import ClientGone, unless_gone
from omnistage.server.http.refusal import response_of
from omnistage.server.http.state import state_of
from omnistage.stage_configs.json_types import JsonMap

logger = logging.getLogger(__name__)

MAX_WRITE_BYTES = 256 << 10
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

Event = JsonMap


def encode_event(event: Event) -> bytes:
    """One event; bytes in it become base64."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


class ClientTooSlow(Exception):
    """The client left more unsent than it may."""


class Unsent:
    """Encoded events that the client has not received yet: at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._events: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._has_ended = False

    def put(self, event: bytes) -> None:
        """Add one; ClientTooSlow if it is too much."""
        if self._num_bytes + len(event) > self._max_bytes:
            raise ClientTooSlow(f"{self._num_bytes} bytes wait for the client")
        self._num_bytes += len(event)
        self._events.append(event)
        self._changed.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._has_ended = True
        self._changed.set()

    async def receive(self, timeout_s: float | None) -> bytes | None:
        """Returns what there is, joined to one write; None at the end; TimeoutError if nothing
        comes.
        """
        if not self._events and not self._has_ended:
            self._changed.clear()
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        if not self._events:
            return None
        joined = [self._events.popleft()]
        size = len(joined[0])
        while self._events and size + len(self._events[0]) <= MAX_WRITE_BYTES:
            size += len(self._events[0])
            joined.append(self._events.popleft())
        self._num_bytes -= size
        return b"".join(joined)


class EventStream(Response):
    """Sends events as they come, and receives them from their maker as fast as they are made.

    The status waits for the first event, so that a request which a stage refuses gets its real
    status; when that takes longer than a keep-alive, 200 goes out and a failure becomes an event.
    A client that leaves more than `max_unsent_bytes` unread is cut off.
    """

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        keep_alive_s: float | None,
        max_unsent_bytes: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._unsent = Unsent(max_unsent_bytes)
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client end."""
        try:
            refusal = await unless_gone(receive, self._send_all(scope, send))
        except ClientGone:
            logger.debug("the client hung up (499)")
            state_of(scope).reported_outcome = Outcome.CANCELLED
            return
        except ClientTooSlow as error:
            logger.warning("cut off: %s", error)
            state_of(scope).reported_outcome = Outcome.CANCELLED
            return
        if refusal is not None:
            await response_of(refusal)(scope, receive, send)

    async def _send_all(self, scope: Scope, send: Send) -> ApiError | None:
        """A refusal comes back if nothing was sent before it."""
        try:
            async with asyncio.TaskGroup() as group:
                making = group.create_task(self._make(scope))
                while (data := await self._next_data()) is not None:
                    await self._send(send, data)
        except* ClientTooSlow as errors:
            raise errors.exceptions[0] from None
        failure = making.result()
        if failure is not None and not self._is_started:
            return failure
        if failure is not None:
            state_of(scope).reported_outcome = Outcome.FAILED
        ending = self._ending(failure)
        if ending is not None:
            await self._send(send, ending)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _make(self, scope: Scope) -> ApiError | None:
        """Put every event into `unsent`; the failure that ended them comes back."""
        try:
            async with within_deadline(scope), aclosing(self._events) as events:
                async for event in events:
                    self._unsent.put(self._encode(event))
        except ClientTooSlow:
            raise
        except ApiError as error:
            return error
        except Exception:
            logger.exception("a stream failed")
            return internal_error()
        finally:
            self._unsent.end()
        return None

    def _encode(self, event: Event) -> bytes:
        return encode_event(event)

    def _ending(self, failure: ApiError | None) -> bytes | None:
        """The last bytes; None to cut the body off."""
        return DONE if failure is None else encode_event(failure.envelope) + DONE

    async def _next_data(self) -> bytes | None:
        try:
            return await self._unsent.receive(self._keep_alive_s)
        except TimeoutError:
            return KEEP_ALIVE

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._is_started:
            self._is_started = True
            headers = self.raw_headers
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


class BareEventStream(EventStream):
    """The same without [DONE]."""

    def _ending(self, failure: ApiError | None) -> bytes | None:
        return b"" if failure is None else encode_event(failure.envelope)


class NamedEventStream(EventStream):
    """The same where each event has its type as its name, and the end is no event."""

    def _encode(self, event: Event) -> bytes:
        return encode_named(event["type"], event)

    def _ending(self, failure: ApiError | None) -> bytes | None:
        return b"" if failure is None else encode_named("error", failure.envelope)


def encode_named(name: str, event: Event) -> bytes:
    return f"event: {name}\n".encode() + encode_event(event)
