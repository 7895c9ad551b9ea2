"""Work of other threads in the loop's: interrupted wherever, it has ended."""

import asyncio
import inspect
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future

import pytest

from omnistage.server.offline.loop_thread import LoopThread

PATIENCE_S = 600.0
WAIT = threading.Condition.wait.__code__
hand_over = asyncio.run_coroutine_threadsafe


class Work:
    """Work that ends only if it is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.has_ended = False

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_ended = True


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


def test_work_interrupted_while_it_is_handed_over_has_ended(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()

    def interrupted(
        coroutine: Coroutine[object, object, None], loop: asyncio.AbstractEventLoop
    ) -> "Future[None]":
        hand_over(coroutine, loop)
        work.begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(work.run())
    assert work.has_ended


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_work_interrupted_before_it_is_handed_over_never_begins(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    coroutine = work.run()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.run(coroutine)
    assert thread.run(asyncio.sleep(0, "goes on")) == "goes on"
    assert not work.begun.is_set()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also below a shell's job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_that_wakes_no_wait_is_handled_while_the_work_goes_on(
    thread: LoopThread,
) -> None:
    """Send it to another thread: it wakes no wait then, like one that comes just before a wait."""
    work = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        thread.run(work.run())
    assert work.is_cancelled


class Interrupting:
    """Work that interrupts the program once the main thread waits for it, and goes on."""

    is_cancelled = False

    async def run(self) -> None:
        waiting = threading.main_thread().ident
        assert waiting is not None
        while sys._current_frames()[waiting].f_code is not WAIT:  # noqa: ASYNC110
            await asyncio.sleep(0)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
