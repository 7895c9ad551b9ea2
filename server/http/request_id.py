"""Gives each request an id that its log lines and its client share; the client may bring it."""

import re
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.common.errors import ApiError
from omnistage.server.http.refusal import refuse
from omnistage.server.http.state import start_of, state_of

HEADER = "x-request-id"
ALLOWED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestId:
    """ASGI middleware: the headers `x-request-id` and `openai-processing-ms`.

    The id and the answer's status are in the request's state, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        is_valid = given is None or ALLOWED.fullmatch(given) is not None
        request_id = given if given is not None and is_valid else f"req_{uuid4().hex}"
        state = state_of(scope)
        state.trace.request_id = request_id
        started = time.monotonic()

        async def send_with_id(message: Message) -> None:
            status = start_of(message)
            if status is not None:
                state.status = status
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers["openai-processing-ms"] = str(round(1e3 * (time.monotonic() - started)))
            await send(message)

        if is_valid:
            await self._app(scope, receive, send_with_id)
        else:
            await refuse(_wrong_id(), scope, receive, send_with_id)


def _wrong_id() -> ApiError:
    message = f"The header {HEADER} must be 1 to 128 letters, digits, dots, colons, _ or -."
    return ApiError(400, message, param=HEADER, code="invalid_value")
