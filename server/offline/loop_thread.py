"""An event loop in a thread of its own, for programs that have none, or whose own is running."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from omnistage.server.offline.errors import Closed

T = TypeVar("T")

PATIENCE_S = 30.0  # for what was interrupted to end
# Python handles a signal that comes just before a wait only when the wait ends.
WAIT_S = 0.5


class LoopThread:
    """Runs coroutines in its loop for other threads, which wait for them.

    The kernel ends a stage when the thread that started it ends, so the thread lives until `stop`.
    It does not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="omnistage", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], is_kept: bool = False) -> T:
        """Returns its result; if the wait is interrupted it is cancelled and has ended, unless
        kept.
        """
        future: Future[T] | None = None
        running: list[asyncio.Task[Any]] = []
        ended = threading.Event()

        async def work_to_the_end() -> T:
            task = asyncio.current_task()
            if task is None or ended.is_set():  # nobody waits any more
                raise asyncio.CancelledError
            running.append(task)
            try:
                return await work
            finally:
                ended.set()

        def cancel() -> None:
            for task in running:
                task.cancel()
            if not running:
                work.close()
                ended.set()

        try:
            future = self._submit(work, work_to_the_end())  # an interrupt may come in here, too
            return awaited(future)
        except CancelledError:
            raise Closed("It was closed before the answer was complete.", code="closed") from None
        finally:
            is_over = ended.is_set() or (future is not None and future.done())
            if not (is_over or is_kept):
                with suppress(RuntimeError):  # the loop is closed, and nothing runs in it
                    self._loop.call_soon_threadsafe(cancel)
                    ended.wait(PATIENCE_S)

    def _submit(
        self, work: Coroutine[object, object, T], wrapped: Coroutine[object, object, T]
    ) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(wrapped, self._loop)
        except RuntimeError:  # the loop is closed
            wrapped.close()
            work.close()
            raise Closed("It is closed.", code="closed") from None

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Returns what an asynchronous generator gives; it is closed when nobody iterates any
        more.
        """
        items = make()
        try:
            while True:
                try:
                    yield self.run(anext_of(items))
                except StopAsyncIteration:
                    return
        finally:
            if self.is_here:  # the collector came by in the loop's own thread
                self.submit(items.aclose())
            elif not self._loop.is_closed():
                self.run(items.aclose())

    @property
    def is_here(self) -> bool:
        """Returns whether this is called in the thread itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the loop and the thread; what still runs in it is cancelled."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_here:
            self._thread.join()

    def submit(self, work: Coroutine[object, object, None]) -> None:
        """Have it done without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()  # waits for no thread: at the interpreter's end none can start

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def awaited(future: Future[T]) -> T:
    """Returns its result, however long it takes; an interrupt ends the wait."""
    while not future.done():
        with suppress(TimeoutError):  # also the work's own, which the last line raises
            return future.result(WAIT_S)
    return future.result()


async def anext_of(items: AsyncGenerator[T, None]) -> T:
    """The next item, as a coroutine."""
    return await anext(items)
