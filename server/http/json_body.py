"""Routes whose body is JSON, parsed here before FastAPI looks for it."""

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import parse_json
from omnistage.server.http.caller import beside_loop

CHARSETS = ("utf-8", "us-ascii", "ascii", "utf8")

Handler = Callable[[Request], Coroutine[object, object, Response]]


class JsonRoute(APIRoute):
    """A route whose JSON body is read here, before FastAPI looks for it."""

    def get_route_handler(self) -> Handler:
        """FastAPI's handler, given a request whose body is already parsed."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            parsed = JsonRequest(request.scope, request.receive)
            await parsed.json()
            return await handle(parsed)

        return handle_json


class JsonRequest(Request):
    """A request whose body must be JSON; ApiError if it is not."""

    async def json(self) -> Any:
        """The body, parsed once."""
        if not hasattr(self, "_json"):
            self._check_headers()
            data = await self.body()
            self._json = await beside_loop(self, lambda: parse_json(data))
        return self._json

    def _check_headers(self) -> None:
        header = Message()
        header["content-type"] = self.headers.get("content-type", "nothing")
        subtype = header.get_content_subtype()
        is_json = header.get_content_maintype() == "application" and (
            subtype == "json" or subtype.endswith("+json")
        )
        if not is_json or header.get_content_charset("utf-8") not in CHARSETS:
            raise _wrong_type("The Content-Type must be application/json, in UTF-8.")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise _wrong_type("The body must not be compressed.")


def _wrong_type(message: str) -> ApiError:
    return ApiError(415, message, code="unsupported_media_type")
