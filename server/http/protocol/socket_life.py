"""How a WebSocket's life ends: why, with which code, and what its client is told before."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from starlette.types import Send

from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.http.sse import ClientTooSlow

logger = logging.getLogger(__name__)

FAREWELL_S = 5.0  # for a client to take the last events
# Codes with which a connection is closed: RFC 6455's and its registry's.
NORMAL, GOING_AWAY, POLICY, TOO_LARGE, RESTART = 1000, 1001, 1008, 1009, 1012


class Ended(Exception):
    """The connection is to be closed, with a code and what is told of it before."""

    def __init__(self, code: int, error: ApiError | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.error = error


async def say_farewell(code: int, outbox: Outbox, send: Send) -> None:
    """Close once the last events have left, or too much time has passed."""
    try:
        async with asyncio.timeout(FAREWELL_S):
            await outbox.empty()
            await send({"type": "websocket.close", "code": code})
    except (TimeoutError, OSError):
        logger.warning("cut off: the client takes nothing")


def ending_of(done: Collection["asyncio.Future[None]"]) -> Ended | None:
    """Return why a connection ends, if its client is there to be told; logs what nobody foresaw."""
    for task in done:
        failure = task.exception()
        if isinstance(failure, Ended):
            return failure
        if isinstance(failure, ClientTooSlow):
            logger.warning("cut off: %s", failure)
            return Ended(POLICY)
        if failure is not None and not isinstance(failure, OSError):
            logger.error("a WebSocket failed", exc_info=failure)
            return Ended(POLICY, internal_error())
    return None


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks, and return when they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class ConnectionTasks:
    """Tasks beside the reading of a connection; the first failure ends the connection."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Return whether nothing runs."""
        return not self._tasks

    def begin(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.fail(failure)

    def run(self, work: Callable[[], None]) -> None:
        """Do what no frame of the client asked for, in a callback of the loop."""
        if self.is_closed or self.failed.done():
            return
        try:
            work()
        except ClientTooSlow as failure:
            self.fail(failure)

    def fail(self, failure: BaseException) -> None:
        """End the connection."""
        if not self.failed.done():
            self.failed.set_exception(failure)

    async def finish(self) -> None:
        """Return when nothing runs any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Cancel all that runs; nothing begins any more."""
        self.is_closed = True
        await cancel_all(*self._tasks)
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # it is known already
