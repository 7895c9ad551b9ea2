"""CORS: the pages of other sites that may send requests from a browser."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.server.common.errors import ApiError
from omnistage.server.http import request_id
from omnistage.server.http.refusal import refuse

EVERY = ("*",)
# Headers of answers that a page may read beside those that every page may.
EXPOSED = (
    request_id.HEADER,
    *("openai-processing-ms", "retry-after", "x-omnistage-warning"),
    *(f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")),
    "location",  # a call's id
    "content-range",
)


@dataclass(frozen=True, slots=True)
class Cors:
    """Origins (`*`: all), and what their pages may send; credentials are cookies, not keys."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = EVERY
    headers: tuple[str, ...] = EVERY
    has_credentials: bool = False

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """ASGI middleware: answers a browser's question before the request (preflight) itself."""
        return CORSMiddleware(
            app,
            allow_origins=self.origins,
            allow_methods=self.methods,
            allow_headers=self.headers,
            allow_credentials=self.has_credentials,
            expose_headers=EXPOSED,
        )


class SocketOrigins:
    """ASGI middleware: refuses WebSockets of pages of other sites, which browsers do not.

    A page may open one to the host that it is from, and others that `origins` allow.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not self._is_allowed(origin, headers.get("host", "")):
                message = "Pages of this origin may not open a WebSocket here."
                error = ApiError(403, message, code="origin_not_allowed")
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed(self, origin: str, host: str) -> bool:
        allowed = self._origins == EVERY or origin in self._origins
        try:
            return allowed or urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:  # it is no URL
            return allowed
