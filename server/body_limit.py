"""Refuses a body that is too large before it is read."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.errors import ApiError

MAX_BODY_BYTES = 32 << 20
LINGER_S = 5.0
"""For so long the rest of a refused body is read and thrown away.

A connection closed with bytes unread is reset, and a reset takes the answer back that the
client has not read yet; most clients read only after they have sent everything.
"""


class BodyLimit:
    """ASGI middleware: 413 by the announced length, or as soon as more than that has come."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        num_bytes = 0
        is_refused = False

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        async def send_or_refuse(message: Message) -> None:
            """What the app makes of the exception is not sent: it only knows a broken body."""
            nonlocal is_refused
            if num_bytes <= self._max_bytes:
                await send(message)
            elif not is_refused:
                is_refused = True
                await self._refuse(scope, receive, send)

        await self._app(scope, counted, send_or_refuse)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer at once, and end the connection when the client has stopped sending."""

        async def send_then_linger(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({**message, "more_body": True})
            try:
                async with asyncio.timeout(LINGER_S):
                    while (await receive()).get("more_body", False):
                        pass
            except TimeoutError:
                pass
            await send({"type": "http.response.body", "body": b""})

        await self._too_large().to_response()(scope, receive, send_then_linger)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self._max_bytes >> 20} MiB."
        return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})
