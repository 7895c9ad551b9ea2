"""The engine's inbox: what other threads bring it, as requests, errands that are done, orders."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.diffusion.engine.order import Order
from omnistage.stages.diffusion.engine.side_lane import Errand

T = TypeVar("T")


@dataclass(slots=True)
class Arrivals:
    """Contents of the inbox since they were last taken."""

    jobs: list[Job] = field(default_factory=list)
    pings: list["Future[None]"] = field(default_factory=list)
    done: list[Errand] = field(default_factory=list)
    passed: list[Errand] = field(default_factory=list)  # which waited in a lane meanwhile
    orders: list[Order[Any]] = field(default_factory=list)


class Inbox:
    """Keeps it for the engine's thread, which takes it; the rest is for any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._arrivals = Arrivals()
        self.is_closed = False
        self.num_done = 0  # errands, so far

    @property
    def jobs(self) -> list[Job]:
        """Returns the requests that have not begun."""
        return self._arrivals.jobs

    def submit(self, job: Job) -> None:
        """Add a request; raises RuntimeError once this is closed."""
        with self.changed:
            if self.is_closed:
                raise RuntimeError("the engine is closed")
            self._arrivals.jobs.append(job)
            self.changed.notify()

    def take_back(self, batch: Sequence[Errand], behind: Sequence[Errand]) -> None:
        """Add errands that are done, and those that waited behind them."""
        with self.changed:
            self._arrivals.done += batch
            self.num_done += len(batch)
            self._arrivals.passed += behind
            self.changed.notify()

    def ping(self) -> "Future[None]":
        """Returns what is done when the engine's thread is between two steps."""
        answer: Future[None] = Future()
        with self.changed:
            self._arrivals.pings.append(answer)
            self.changed.notify()
        return answer

    def order(self, function: Callable[[], T]) -> "Future[T]":
        """Returns the result of a function that the engine's thread is to call."""
        order = Order(function)
        with self.changed:
            self._arrivals.orders.append(order)
            self.changed.notify()
        return order.result

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel requests, which may have begun."""
        with self.changed:
            for job in jobs:
                job.cancel()
            self.changed.notify()

    def close(self) -> None:
        """Cancel what has not begun, and take no more."""
        with self.changed:
            self.is_closed = True
            self.cancel(self._arrivals.jobs)

    def take(self, is_busy: Callable[[], bool], room: Callable[[], int]) -> Arrivals:
        """Returns what came, at most `room` requests of it; waits for it if nobody is busy."""
        with self.changed:
            while not (is_busy() or self._has_any(room())):
                self.changed.wait()
            arrivals, num_jobs = self._arrivals, room()
            self._arrivals = Arrivals(jobs=arrivals.jobs[num_jobs:])
            arrivals.jobs = arrivals.jobs[:num_jobs]
            return arrivals

    def _has_any(self, room: int) -> bool:
        arrivals = self._arrivals
        came = (arrivals.jobs[:room], arrivals.pings, arrivals.orders, arrivals.done)
        return self.is_closed or any(came)
