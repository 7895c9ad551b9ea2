"""Waiting for what is about to happen elsewhere."""

import asyncio
import time
from collections.abc import Callable

INTERVAL_S = 0.01


def wait_until(is_true: Callable[[], object], within_s: float = 5.0) -> None:
    """Return as soon as it is true; fail if it does not become so in time."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(INTERVAL_S)


async def until(is_true: Callable[[], object], within_s: float = 5.0) -> None:
    """The same beside what else runs in the loop."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(INTERVAL_S)
