"""The memory that the media of all requests may take together while they are decoded."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from omnistage.server.common.memory import GivingBack

NUM_BYTES = 1 << 30
NUM_THREADS = min(8, os.cpu_count() or 1)

T = TypeVar("T")


class TakenRoom:
    """Room that is taken; called with a step, it does it in a thread. One step at a time."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self.last: Future[Any] = Future()
        self.last.set_result(None)

    async def __call__(self, step: Callable[[], T]) -> T:
        """Return the step's result."""
        working = self.last = self._threads.submit(step)
        return await asyncio.wrap_future(working)


class DecodeRoom:
    """Who finds no room waits for it, in order; who needs more than all of it has all of it."""

    def __init__(self, num_bytes: int, giving_back: GivingBack) -> None:
        self._num_bytes = num_bytes
        self._num_free = num_bytes
        self._giving_back = giving_back
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._threads = ThreadPoolExecutor(NUM_THREADS, "media")

    @property
    def num_taken(self) -> int:
        """How many bytes are given away."""
        return self._num_bytes - self._num_free

    async def run(
        self,
        num_bytes: int,
        work: Callable[[], T],
        until: ExitStack | None = None,
        num_kept: Callable[[T], int] = lambda _: 0,
    ) -> T:
        """The result of `work`, done in a thread once there is room for it.

        The room is taken until the work ends, also when nobody waits for it any more; `num_kept` of
        it, for the result, until the stack ends.
        """
        num_bytes = await self._reserve(num_bytes)
        loop = asyncio.get_running_loop()
        working = self._threads.submit(work)

        def kept(done: "Future[T]") -> int:
            if until is None or done.cancelled() or done.exception() is not None:
                return 0
            return min(num_kept(done.result()), num_bytes)

        def give_in_loop(num_given: Callable[["Future[T]"], int], done: "Future[T]") -> None:
            with suppress(RuntimeError):  # the loop has ended before the work
                loop.call_soon_threadsafe(self._give, num_given(done))

        working.add_done_callback(partial(give_in_loop, lambda done: num_bytes - kept(done)))
        if until is not None:
            until.callback(working.add_done_callback, partial(give_in_loop, kept))
        return await asyncio.wrap_future(working)

    @asynccontextmanager
    async def held(
        self, num_bytes: int, close: Callable[[], object]
    ) -> AsyncGenerator["TakenRoom", None]:
        """Take room for what is done in several steps: what is entered does each in a thread.

        At the end, once no step runs any more, `close` is called and the room given back. Nobody
        waits for that, nor for other room meanwhile: steps need none.
        """
        num_bytes = await self._reserve(num_bytes)
        loop = asyncio.get_running_loop()
        held = TakenRoom(self._threads)

        def end(_: "Future[Any]") -> None:
            close()
            with suppress(RuntimeError):  # the loop has ended before the work
                loop.call_soon_threadsafe(self._give, num_bytes)

        try:
            yield held
        finally:
            held.last.add_done_callback(end)

    async def _reserve(self, wanted: int) -> int:
        num_bytes = min(wanted, self._num_bytes)
        if not self._waiting and num_bytes <= self._num_free:
            self._num_free -= num_bytes
            return num_bytes
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(num_bytes)
            else:
                self._waiting.remove((num_bytes, turn))
                self._let_in()
            raise
        return num_bytes

    def _give(self, num_bytes: int) -> None:
        self._num_free += num_bytes
        self._giving_back.freed(num_bytes)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._num_free:
            num_bytes, turn = self._waiting.popleft()
            self._num_free -= num_bytes
            turn.set_result(None)
