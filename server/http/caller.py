"""An HTTP request as tasks see it: its preparation ends when its client does, or is overdue."""

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from fastapi import Request

from omnistage.server.http.beside_loop import beside_loop, in_thread
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.state import state_of

T = TypeVar("T")


class HttpCaller:
    """The client of one HTTP request; `is_slow`: its work takes long though its body is short."""

    def __init__(self, http: Request, is_slow: bool = False) -> None:
        self._http = http
        self._is_slow = is_slow

    @property
    def until(self) -> ExitStack:
        """Closed when the last byte of the answer has been sent.

        The answer may be a stream that begins after the endpoint has returned, and one whose
        events are never read.
        """
        return state_of(self._http.scope).at_end

    async def compute(self, work: Callable[[], T]) -> T:
        """Do the work of a short body here, of a long one in a thread."""
        run = in_thread if self._is_slow else beside_loop
        return await run(self._http, work)

    async def wait(self, loading: Coroutine[Any, Any, T]) -> T:
        """Await what is loaded; raises ApiError once the request is overdue, and ClientGone."""
        async with within_deadline(self._http.scope):
            return await unless_gone(self._http.receive, loading)
