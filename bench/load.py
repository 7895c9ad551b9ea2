"""How requests come: so many streams kept busy (closed loop), or arrivals at a rate (open loop)."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, ClassVar

Ask = Callable[[int, float | None], Coroutine[Any, Any, None]]
"""Asks a number; with when it was to come, on the loop's clock, in an open loop."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` streams, each asking again as soon as it was answered."""

    rate: ClassVar[None] = None
    concurrency: int
    num_requests: int
    num_warmups: int

    async def run(self, ask: Ask, numbers: range) -> None:
        """Ask each number once."""
        waiting = iter(numbers)

        async def stream() -> None:
            for number in waiting:
                await ask(number, None)

        async with asyncio.TaskGroup() as streams:
            for _ in range(self.concurrency):
                streams.create_task(stream())


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals at `rate` requests/s, whatever is still in flight."""

    concurrency: ClassVar[None] = None
    rate: float
    num_requests: int
    num_warmups: int
    seed: int

    async def run(self, ask: Ask, numbers: range) -> None:
        """Ask each number once."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with asyncio.TaskGroup() as requests:
            for number, arrival_s in zip(
                numbers, arrivals(self.rate, len(numbers), self.seed), strict=True
            ):
                due_s = start_s + arrival_s
                await asyncio.sleep(due_s - loop.time())
                requests.create_task(ask(number, due_s))


Load = ClosedLoop | OpenLoop


def arrivals(rate: float, num_requests: int, seed: int) -> list[float]:
    """When requests of a Poisson process come, in seconds; the first comes at once."""
    random = Random(seed)
    pauses = (random.expovariate(rate) for _ in range(num_requests - 1))
    return list(accumulate(pauses, initial=0.0)) if num_requests else []
