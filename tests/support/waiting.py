"""Waiting for what is about to happen elsewhere."""

import asyncio
import time
from collections.abc import Callable

INTERVAL_S = 0.01
PATIENCE_S = 600.0  # on any machine: what comes at all comes sooner


def wait_until(is_true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return as soon as it is true; fail if it does not become so in time.

    `within_s`: more patience, never less, since any machine may be busy.
    """
    deadline = time.monotonic() + max(within_s, PATIENCE_S)
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(INTERVAL_S)


def pass_over(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Set the clock of a loop forward, from the loop's own thread."""
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def until(is_true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """The same beside what else runs in the loop."""
    deadline = time.monotonic() + max(within_s, PATIENCE_S)
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(INTERVAL_S)
