"""By when a request must be answered."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.server.common.deadline import due_at
from omnistage.server.common.errors import ApiError
from omnistage.server.http.refusal import refuse
from omnistage.server.http.state import state_of

HEADER = "x-request-timeout"
MAX_S = 86_400.0


class Deadline:
    """ASGI middleware: says in the request's state by when it is due, by header and option.

    A header asks for less than the server's own `timeout_s`, never for more. Of a WebSocket each
    answer has so much time.
    """

    def __init__(self, app: ASGIApp, timeout_s: float | None) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] in ("http", "websocket"):
            try:
                timeout_s = self._asked(Headers(scope=scope).get(HEADER))
            except ApiError as error:
                await refuse(error, scope, receive, send)
                return
            state_of(scope).timeout_s = timeout_s
            if timeout_s is not None and scope["type"] == "http":
                state_of(scope).due_at = asyncio.get_running_loop().time() + timeout_s
        await self._app(scope, receive, send)

    def _asked(self, header: str | None) -> float | None:
        if header is None:
            return self._timeout_s
        try:
            asked_s = float(header)
        except ValueError:
            asked_s = math.nan
        if not 0 < asked_s <= MAX_S:
            message = f"The header {HEADER} must be a number of seconds, at most {MAX_S:g}."
            raise ApiError(400, message, param=HEADER, code="invalid_value")
        return asked_s if self._timeout_s is None else min(asked_s, self._timeout_s)


@asynccontextmanager
async def within_deadline(scope: Scope) -> AsyncGenerator[None, None]:
    """Cancel what runs inside when the request is overdue; ApiError then."""
    async with due_at(state_of(scope).due_at):
        yield
