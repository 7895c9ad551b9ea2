"""Which pages of other sites may ask from a browser."""

from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from omnistage.server.http import request_id

EVERY = ("*",)
# Headers of answers that a page may read beside those that every page may.
EXPOSED = (request_id.HEADER, "openai-processing-ms", "retry-after", "x-omnistage-warning")


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
