"""Time for which nobody is to blame: this process did not run, as while its machine is paused."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

INTERVAL_S = 0.25


class Standstills:
    """Looks at the clock at an interval: how late it looks is how long the event loop stood still.

    Whoever waits for another process has its signs of life in the queue by then, or the other one
    stood still too. `total_s`: for how long it stood still so far.
    """

    def __init__(self, on_standstill: Callable[[float], None] = lambda _: None) -> None:
        self.total_s = 0.0
        self._on_standstill = on_standstill

    def start(self) -> None:
        """Look from now on; needs a running event loop."""
        self._wait(asyncio.get_running_loop().time())

    def _wait(self, now: float) -> None:
        self._due_at = now + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_at(self._due_at, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        late_s = now - self._due_at
        if late_s > INTERVAL_S:
            self.total_s += late_s
            self._on_standstill(late_s)
        self._wait(now)

    def stop(self) -> None:
        """Look no longer."""
        self._timer.cancel()


@asynccontextmanager
async def patience(limit_s: float) -> AsyncGenerator[None, None]:
    """Raise TimeoutError after so many seconds in which this event loop ran."""
    async with asyncio.timeout(limit_s) as timeout:

        def extend(seconds: float) -> None:
            due_at = timeout.when()
            if due_at is not None and not timeout.expired():
                timeout.reschedule(due_at + seconds)

        standstills = Standstills(extend)
        standstills.start()
        try:
            yield
        finally:
            standstills.stop()
