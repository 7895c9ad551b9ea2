"""Refuses a body that is too large, alone or with the others, before it is read."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.common.errors import ApiError
from omnistage.server.common.memory import GivingBack
from omnistage.server.http.refusal import refuse

MAX_BODY_BYTES = 32 << 20
MAX_HELD_BYTES = 1 << 30
RETRY_S = 1


class BodyLimit:
    """ASGI middleware: 413 by the announced length, or as soon as more than that has come.

    The bodies of all requests that are there may have `max_held_bytes`; what is more is a 503.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int = MAX_BODY_BYTES,
        max_held_bytes: int = MAX_HELD_BYTES,
        giving_back: GivingBack | None = None,
    ) -> None:
        self._app = app
        self._giving_back = giving_back or GivingBack()
        self._max_bytes = max_bytes
        self._max_held_bytes = max_held_bytes
        self._num_held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await refuse(self._too_large(), scope, receive, send)
            return
        num_bytes = 0
        refusal: ApiError | None = None
        is_refused = False

        async def counted() -> Message:
            nonlocal num_bytes, refusal
            message = await receive()
            size = len(message.get("body", b""))
            num_bytes += size
            self._num_held_bytes += size
            if num_bytes > self._max_bytes:
                refusal = self._too_large()
            elif size and self._num_held_bytes > self._max_held_bytes:
                refusal = _too_much()
            if refusal is not None:
                raise refusal
            return message

        async def send_or_refuse(message: Message) -> None:
            """Drops the app's answer to the exception, which only knows a broken body."""
            nonlocal is_refused
            if refusal is None:
                await send(message)
            elif not is_refused:
                is_refused = True
                await refuse(refusal, scope, receive, send)

        try:
            await self._app(scope, counted, send_or_refuse)
        finally:
            self._num_held_bytes -= num_bytes
            self._giving_back.freed(num_bytes)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection holds as much as its largest frame, whose size the protocol bounds."""
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            size = len(message.get("bytes") or message.get("text") or "")
            if size > num_bytes:
                self._num_held_bytes += size - num_bytes
                num_bytes = size
                if self._num_held_bytes > self._max_held_bytes:
                    raise _too_much()
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._num_held_bytes -= num_bytes
            self._giving_back.freed(num_bytes)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self._max_bytes >> 20} MiB."
        return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def _too_much() -> ApiError:
    return ApiError(
        503,
        "The server has too many large requests.",
        code="server_overloaded",
        retry_after_s=RETRY_S,
        headers={"Connection": "close"},
    )
