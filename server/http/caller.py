"""An HTTP request as tasks see it: its preparation ends when its client does, or is overdue."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from typing import TypeVar

from fastapi import FastAPI, Request

from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.state import state_of

# Python lets one thread compute at a time and takes turns every 5 ms: more threads would not be
# faster, but each would make the event loop wait for one turn more.
NUM_THREADS = 2
MAX_LOOP_BYTES = 64 << 10  # what comes of longer bodies is done beside the event loop

T = TypeVar("T")


def install_threads(app: FastAPI) -> None:
    """Have an app's requests share these threads."""
    app.state.body_threads = ThreadPoolExecutor(NUM_THREADS, "body")


async def beside_loop(request: Request, work: Callable[[], T]) -> T:
    """Do a request's work: here if its body is short, else in one of the threads."""
    if len(await request.body()) <= MAX_LOOP_BYTES:
        return work()
    return await in_thread(request, work)


async def in_thread(request: Request, work: Callable[[], T]) -> T:
    threads: Executor = request.app.state.body_threads
    context = copy_context()  # a log line that is written there is the request's too
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)


class HttpCaller:
    """The client of one HTTP request; `is_slow`: its work takes long though its body is short."""

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
        run = in_thread if self._is_slow else beside_loop
        return await run(self._http, work)

    async def wait(self, loading: Coroutine[object, object, T]) -> T:
        """Await what is loaded; raises ApiError once the request is overdue, and ClientGone."""
        async with within_deadline(self._http.scope):
            return await unless_gone(self._http.receive, loading)
