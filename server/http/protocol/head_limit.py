"""Refuses a request whose line and headers are too long."""

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from omnistage.server.common.errors import ApiError
from omnistage.server.http.refusal import refuse

MAX_HEAD_BYTES = 64 << 10
LIMIT = f"has more than {MAX_HEAD_BYTES} bytes in its line and headers"
SOCKET_LIMITS = (
    f"for a WebSocket has more than {MAX_NUM_HEADERS} headers, or one of more than "
    f"{MAX_LINE_LENGTH} bytes"
)
BYTES_BETWEEN = 4  # a colon, a space and the line's end


class HeadLimit:
    """ASGI middleware: 431 for a head of more than MAX_HEAD_BYTES that has come whole.

    Of one that goes on, the protocol reads no more than that (http_protocol.py).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] in ("http", "websocket") and head_bytes(scope) > MAX_HEAD_BYTES:
            await refuse(head_too_large(), scope, receive, send)
        else:
            await self._app(scope, receive, send)


def head_bytes(scope: Scope) -> int:
    """Return about how many bytes a request's line and headers had."""
    headers = sum(len(name) + len(value) + BYTES_BETWEEN for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])


def fits_socket(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether `websockets` reads such headers, and does not just hang up."""
    longest = max((len(name) + len(value) for name, value in headers), default=0)
    return len(headers) <= MAX_NUM_HEADERS and longest + BYTES_BETWEEN <= MAX_LINE_LENGTH


def head_too_large(problem: str = LIMIT) -> ApiError:
    """Return the refusal."""
    return ApiError(431, f"The request {problem}.", code="headers_too_large")
