"""Simulated time, and devices whose batches slow each other down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

Act = Callable[[], None]


class Clock:
    """Acts in the order of their times; those of one time in the order in which they were told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._acts: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def after(self, delay_s: float, act: Act) -> None:
        """Do something later."""
        heappush(self._acts, (self.now_s + delay_s, next(self._numbers), act))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._acts:
            self.now_s, _, act = heappop(self._acts)
            act()


@dataclass(slots=True, eq=False)
class Batch:
    """What a device computes: what it would still take alone, and its share of the device."""

    left_s: float
    share: float
    done: Act


class Device:
    """A GPU, or the cores of a machine, on which several stages may compute at once.

    Each batch takes a share of it while it runs. Beyond 1 in all, every batch takes longer by that
    sum; a share above 1 is what taking turns costs.
    """

    def __init__(self, clock: Clock) -> None:
        self.busy_s = 0.0
        self._clock = clock
        self._batches: list[Batch] = []
        self._changed_s = 0.0
        self._plan = 0

    def compute(self, seconds: float, share: float, done: Act) -> None:
        """A batch that alone would take so long; `done` is called at its end."""
        self._pass_time()
        self._batches.append(Batch(seconds, share, done))
        self._plan_next()

    @property
    def _slowdown(self) -> float:
        if len(self._batches) == 1:
            return 1.0
        return max(1.0, sum(batch.share for batch in self._batches))

    def _pass_time(self) -> None:
        passed_s = self._clock.now_s - self._changed_s
        self._changed_s = self._clock.now_s
        if self._batches:
            self.busy_s += passed_s * min(1.0, sum(batch.share for batch in self._batches))
            done_s = passed_s / self._slowdown
            for batch in self._batches:
                batch.left_s -= done_s

    def _plan_next(self) -> None:
        """The end of the batch that is nearest to it; earlier plans are void."""
        self._plan += 1
        if self._batches:
            plan, nearest = self._plan, min(self._batches, key=lambda one: one.left_s)
            delay_s = max(0.0, nearest.left_s) * self._slowdown
            self._clock.after(delay_s, lambda: self._end(plan, nearest))

    def _end(self, plan: int, batch: Batch) -> None:
        if plan == self._plan:
            self._pass_time()
            self._batches.remove(batch)
            self._plan_next()
            batch.done()


class Devices:
    """Some that compute each batch at once, a part each: it ends with the last of them."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices

    def compute(self, seconds: float, share: float, done: Act) -> None:
        """As of one device; `seconds` is what each would take alone."""
        parts = count(1)

        def end() -> None:
            if next(parts) == len(self._devices):
                done()

        for device in self._devices:
            device.compute(seconds, share, end)
