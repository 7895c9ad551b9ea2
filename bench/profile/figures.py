"""Sums of a profile: how much of the time each stage computed, alone and beside others."""

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from omnistage.bench.profile.intervals import Intervals, Times, TimeWindow, shares, union
from omnistage.bench.profile.traces import TraceError, TraceEvent

US = 1e-6
MOST_KERNELS = 12
KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
OPERATORS = "cpu_op"
ON_GPU, ON_CPU = "gpu_user_annotation", "user_annotation"
# vLLM's name of a step begins so, and ours of a decoder's.
STEP = re.compile(r"execute_|decode_\d")
GRAPH_LAUNCH = "cudaGraphLaunch"
SPAN = "Trace"  # the category of the event that says when a process recorded
SLOWED = (
    "A profile slows what it looks at: the figures of this level are not to be compared with those "
    "of others."
)


class Kernel(BaseModel, frozen=True):
    """All runs of one kernel, or of one operator with what it calls."""

    name: str
    calls: int
    total_s: float
    median_s: float


class Steps(BaseModel, frozen=True):
    """A stage's steps; medians: how long one takes, from start to start, from end to start."""

    number: int
    length_s: float
    period_s: float | None
    gap_s: float | None


class StageProfile(BaseModel, frozen=True):
    """Shares are of the window. `beside`: in which it and another stage compute."""

    name: str
    busy: float
    beside: float
    runs_per_s: float
    graphs_per_s: float
    steps: Steps | None
    kernels: tuple[Kernel, ...]


class Share(BaseModel, frozen=True):
    """The share of the window in which exactly these stages compute."""

    stages: tuple[str, ...]
    share: float


class Profile(BaseModel, frozen=True):
    """The window is what all traces have; `runs` says what counts as computing."""

    file: str
    window_s: float
    runs: Literal["kernels", "operators"]
    stages: tuple[StageProfile, ...]
    shares: tuple[Share, ...]
    num_skipped: int = 0
    unprofiled: tuple[str, ...] = ()
    ended_early: bool = False
    note: str = SLOWED

    def share_of(self, num_stages: int) -> float:
        """The share in which so many stages compute at once."""
        return sum(one.share for one in self.shares if len(one.stages) == num_stages)


@dataclass(slots=True)
class Runs:
    """Runs of kernels or operators: microseconds, and a number for each name."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))
    names: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, event: TraceEvent, start: float, end: float, numbers: dict[str, int]) -> None:
        """One more."""
        self.starts.append(start)
        self.ends.append(end)
        self.names.append(numbers.setdefault(event.name, len(numbers)))


class Recorded:
    """The parts of one stage's traces that figures are made of."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.num_skipped = 0
        self._numbers: dict[str, int] = {}
        self._runs = {True: Runs(), False: Runs()}  # kernels, operators
        self._steps: dict[tuple[int, str, Any, Any], list[tuple[float, float]]] = {}
        self._launches = array("d")
        self._spans: list[tuple[float, float]] = []
        self._num_traces = 0

    def read(self, events: Iterable[TraceEvent]) -> None:
        """One process's."""
        self._num_traces += 1
        first, last = np.inf, -np.inf
        span: tuple[float, float] | None = None
        for event in events:
            if event.ph != "X" or event.ts is None or event.dur is None:
                continue
            start, end = event.ts, event.ts + event.dur
            if event.cat == SPAN:
                span = (start, end) if end > start else span
                continue
            first, last = min(first, start), max(last, end)
            self._note(event, start, end)
        if span is None and last > first:
            span = (first, last)
        if span is not None:
            self._spans.append(span)

    def _note(self, event: TraceEvent, start: float, end: float) -> None:
        if event.cat in KERNELS:
            self._runs[True].add(event, start, end, self._numbers)
        elif event.cat == OPERATORS:
            self._runs[False].add(event, start, end, self._numbers)
        elif event.cat in (ON_GPU, ON_CPU):
            if STEP.match(event.name):
                row = self._num_traces, event.cat, event.pid, event.tid
                self._steps.setdefault(row, []).append((start, end))
        elif event.name.startswith(GRAPH_LAUNCH):
            self._launches.append(start)

    @property
    def has_kernels(self) -> bool:
        """Returns whether anything ran on a GPU."""
        return len(self._runs[True].starts) > 0

    @property
    def span(self) -> tuple[float, float]:
        """When all of its processes recorded; TraceError if one has nothing in it."""
        if len(self._spans) < self._num_traces:
            raise TraceError(f"the trace of stage {self.stage} is empty")
        return max(begin for begin, _ in self._spans), min(end for _, end in self._spans)

    def busy(self, window: TimeWindow, *, kernels: bool) -> Intervals:
        """Returns when at least one runs."""
        runs = self._runs[kernels]
        return union(window.clipped(np.array(runs.starts), np.array(runs.ends)))

    def profile(self, window: TimeWindow, *, kernels: bool, beside: float) -> StageProfile:
        """Returns its figures."""
        runs = self._runs[kernels]
        starts, ends = np.array(runs.starts), np.array(runs.ends)
        inside = window.has(starts)
        names = np.array(runs.names)[inside]
        return StageProfile(
            name=self.stage,
            busy=self.busy(window, kernels=kernels).total / window.length,
            beside=beside,
            runs_per_s=float(np.count_nonzero(inside)) / window.length / US,
            graphs_per_s=float(np.count_nonzero(window.has(np.array(self._launches))))
            / window.length
            / US,
            steps=self._steps_in(window),
            kernels=tuple(self._largest(names, (ends - starts)[inside])),
        )

    def _largest(self, names: npt.NDArray[np.int64], lengths: Times) -> Iterable[Kernel]:
        """The kernels of most time."""
        totals = np.bincount(names, weights=lengths) if len(names) else np.zeros(0)
        known = {number: name for name, number in self._numbers.items()}
        for number in np.argsort(totals)[::-1][:MOST_KERNELS].tolist():
            own = lengths[names == number]
            if len(own):
                yield Kernel(
                    name=known[number],
                    calls=len(own),
                    total_s=float(own.sum()) * US,
                    median_s=float(np.median(own)) * US,
                )

    def _steps_in(self, window: TimeWindow) -> Steps | None:
        """Returns the steps of the row that has most, on a GPU if there are any there.

        A step has a row for each of its streams, and ranks make the same steps.
        """
        for category in (ON_GPU, ON_CPU):
            rows = [np.array(own) for row, own in self._steps.items() if row[1] == category]
            inside = [own[window.has(own[:, 0])] for own in rows]
            most = max(inside, key=len, default=None)
            if most is not None and len(most):
                return steps_of(most[np.argsort(most[:, 0])])
        return None


def steps_of(steps: Times) -> Steps:
    """Returns the figures of steps [n, start and end], in their order."""
    starts, ends = steps[:, 0], steps[:, 1]
    has_next = len(steps) > 1
    return Steps(
        number=len(steps),
        length_s=float(np.median(ends - starts)) * US,
        period_s=float(np.median(np.diff(starts))) * US if has_next else None,
        gap_s=float(np.median(starts[1:] - ends[:-1])) * US if has_next else None,
    )


def profile_of(recorded: Sequence[Recorded], file: str, **more: Any) -> Profile:
    """The figures of a server's stages; TraceError if their traces have no time in common.

    Where nothing ran on a GPU, operators count.
    """
    begin = max(one.span[0] for one in recorded)
    end = min(one.span[1] for one in recorded)
    if end <= begin:
        spans = ", ".join(f"{one.stage} {_span(one)}" for one in recorded)
        raise TraceError(f"the stages' traces have no time in common: {spans}")
    window = TimeWindow(begin, end)
    kernels = any(one.has_kernels for one in recorded)
    names = [one.stage for one in recorded]
    found = shares([one.busy(window, kernels=kernels) for one in recorded], window)
    return Profile(
        file=file,
        window_s=window.length * US,
        runs="kernels" if kernels else "operators",
        stages=tuple(
            one.profile(
                window,
                kernels=kernels,
                beside=sum(
                    share for members, share in found.items() if number in members and members[1:]
                ),
            )
            for number, one in enumerate(recorded)
        ),
        shares=tuple(
            Share(stages=tuple(names[number] for number in members), share=share)
            for members, share in sorted(found.items(), key=lambda one: (len(one[0]), one[0]))
        ),
        num_skipped=sum(one.num_skipped for one in recorded),
        **more,
    )


def _span(one: Recorded) -> str:
    begin, end = one.span
    return f"{begin * US:.3f} to {end * US:.3f} s"
