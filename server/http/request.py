"""An HTTP request: its JSON body, where its work is done, and its client as tasks see it."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from email.message import Message
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import parse_json
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.state import state_of

# Python lets one thread compute at a time and takes turns every 5 ms: more threads would not be
# faster, but each would make the event loop wait for one turn more.
NUM_THREADS = 2
MAX_LOOP_BYTES = 64 << 10  # what comes of longer bodies is done beside the event loop
CHARSETS = ("utf-8", "us-ascii", "ascii", "utf8")

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[object, object, Response]]


def install_threads(app: FastAPI) -> None:
    """Have an app's requests share these threads."""
    app.state.body_threads = ThreadPoolExecutor(NUM_THREADS, "body")


async def in_thread(request: Request, work: Callable[[], T]) -> T:
    """Do a request's work beside the event loop."""
    threads: Executor = request.app.state.body_threads
    context = copy_context()  # a log line that is written there is the request's too
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)


class JsonRoute(APIRoute):
    """A route whose body is JSON, parsed here before FastAPI looks for it."""

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
            if len(data) <= MAX_LOOP_BYTES:
                self._json = parse_json(data)
            else:
                self._json = await in_thread(self, partial(parse_json, data))
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


class HttpCaller:
    """The client of an HTTP request, as tasks see it: they end with it, or when it is overdue.

    `is_slow`: its work takes long though its body is short.
    """

    def __init__(
        self, http: Request, is_slow: bool = False, until: ExitStack | None = None
    ) -> None:
        self._http = http
        self._is_slow = is_slow
        self._until = until

    @property
    def until(self) -> ExitStack:
        """Closed when the last byte of the answer has been sent.

        The answer may be a stream that begins after the endpoint has returned, and one whose
        events are never read.
        """
        return state_of(self._http.scope).at_end if self._until is None else self._until

    def attempt(self) -> "HttpCaller":
        """Return the caller of one attempt at the answer: closing its `until` gives it up."""
        until = self.until.enter_context(ExitStack())
        return HttpCaller(self._http, self._is_slow, until)

    async def compute(self, work: Callable[[], T]) -> T:
        """Do the work of a short body here, of a long one in a thread."""
        if self._is_slow or len(await self._http.body()) > MAX_LOOP_BYTES:
            return await in_thread(self._http, work)
        return work()

    async def wait(self, loading: Coroutine[object, object, T]) -> T:
        """Await what is loaded; raises ApiError once the request is overdue, and ClientGone."""
        async with within_deadline(self._http.scope):
            return await unless_gone(self._http.receive, loading)
