"""One request as it is followed: what it is called, what stamped it, and what was made for it.

All processes of a machine share the monotonic clock, so stamps of different processes compare.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise

from omnistage.server.common.outcome import Outcome
from omnistage.stages.messages.trace_context import TraceContext

GATEWAY = "gateway"
UNNAMED = "?"
RECEIVED, FINISHED, ENDED = "received", "finished", "ended"
ENDS = (FINISHED, ENDED)  # that say that something was over, not what was waited for
AGAIN = "-again"  # what the name ends with of a request that is sent a second time
FIRST_TEXT, FIRST_AUDIO, FIRST_IMAGE = "first_text", "first_audio", "first_image"


@dataclass(frozen=True, slots=True)
class TraceStep:
    """The time between two stamps; it is named by the stamp at its end."""

    stage: str
    event: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Timeline:
    """The stamps of one request."""

    marks: dict[tuple[str, str], int] = field(default_factory=dict)  # of stage and event, ns

    def mark(self, stage: str, event: str, at_ns: int | None = None) -> None:
        """Add a stamp, now or as a stage took it; of one event only the first counts."""
        if (stage, event) not in self.marks:
            self.marks[stage, event] = time.monotonic_ns() if at_ns is None else at_ns

    @property
    def way(self) -> list[tuple[int, str, str]]:
        """When the request came to which stage and event, in order, without what was over."""
        marks = self.marks.items()
        return sorted((at_ns, *what) for what, at_ns in marks if what[1] not in ENDS)

    def to_list(self) -> list[dict[str, object]]:
        """The way, ms after its first stamp."""
        way = self.way
        return [
            {"stage": stage, "event": event, "ms": round((at_ns - way[0][0]) / 1e6, 3)}
            for at_ns, stage, event in way
        ]

    @property
    def steps(self) -> list[TraceStep]:
        """Returns what lies between the stamps of the way, laid end to end."""
        return [
            TraceStep(stage, event, began_ns, at_ns)
            for (began_ns, *_), (at_ns, stage, event) in pairwise(self.way)
        ]

    @property
    def stages(self) -> dict[str, tuple[int, int]]:
        """Returns for each stage when the request was on its way there, and its last stamp; in
        order.
        """
        spans: dict[str, tuple[int, int]] = {}
        for step in self.steps:
            if step.stage != GATEWAY:
                spans.setdefault(step.stage, (step.start_ns, step.end_ns))
        for (stage, _), at_ns in self.marks.items():
            if stage in spans:
                spans[stage] = spans[stage][0], max(spans[stage][1], at_ns)
        return spans

    def seconds_to(self, event: str, stage: str = GATEWAY) -> float | None:
        """From the request's receipt to a stamp; None if one of them is missing."""
        began_ns, at_ns = self.marks.get((GATEWAY, RECEIVED)), self.marks.get((stage, event))
        return None if began_ns is None or at_ns is None else (at_ns - began_ns) / 1e9


@dataclass(slots=True)
class Trace:
    """One HTTP request: its names, its timeline, how it ended and what was made for it."""

    request_id: str = UNNAMED
    method: str = ""
    path: str = ""
    parent: TraceContext | None = None  # its client's span, if that named one
    context: TraceContext | None = None  # its own span, if it is recorded or has a parent
    is_recorded: bool = False  # its spans will be exported
    began_at: float = field(default_factory=time.time)
    timeline: Timeline = field(default_factory=Timeline)
    graph_ids: list[str] = field(default_factory=list)  # of what it ran in the graph
    status: int | None = None
    outcome: Outcome | None = None  # None: it has not ended
    num_tokens_in: int = 0
    num_tokens_out: int = 0
    audio_s: float = 0.0
    num_images: int = 0
    held_back: list[Callable[[], None]] | None = None  # counts, while its client must not know

    def count(self, counting: Callable[[], None]) -> None:
        """Count something of it, once its client knows that it is made."""
        if self.held_back is None:
            counting()
        else:
            self.held_back.append(counting)

    def reveal(self) -> None:
        """Count what was held back: its client is told from now on."""
        held, self.held_back = self.held_back or [], None
        for counting in held:
            counting()

    @property
    def seconds(self) -> float | None:
        """From its receipt to its end, if it has ended."""
        return self.timeline.seconds_to(ENDED)

    @property
    def traceparent(self) -> str | None:
        """Returns what engines are told, if they are to export spans."""
        return self.context.header if self.context is not None and self.is_recorded else None


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def current_trace() -> Trace:
    """That of the request in whose task this is called; a new one outside of any."""
    return _current.get() or Trace()


def named_trace() -> Trace | None:
    """That of the request in whose task this is called, if it has its name already."""
    trace = _current.get()
    return None if trace is None or trace.request_id == UNNAMED else trace


@contextmanager
def following(trace: Trace) -> Iterator[None]:
    """Makes what runs inside, and every task that it starts, belong to this request."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)
