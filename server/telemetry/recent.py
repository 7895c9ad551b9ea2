"""The latest requests, in memory: where the time of each went."""

from collections import deque

from omnistage.server.common.trace import FIRST_AUDIO, FIRST_TEXT, GATEWAY, RECEIVED, Trace
from omnistage.stage_configs.json_types import JsonMap

NUM_TRACES = 256


class RecentTraces:
    """The last requests that began, of those that have ended and those that have not."""

    def __init__(self, num_traces: int = NUM_TRACES) -> None:
        self.num_traces = num_traces
        self._traces: deque[Trace] = deque(maxlen=num_traces)

    def add(self, trace: Trace) -> None:
        """Keep one; the oldest goes if there are too many."""
        self._traces.append(trace)

    def find(self, name: str) -> list[Trace]:
        """Returns the last request of this id, trace id, or id in its answer.

        Without one, all whose ids begin with it, the last first.
        """
        latest = self.latest()
        exact = [trace for trace in latest if name in names_of(trace)]
        return exact[:1] or [
            trace for trace in latest if any(one.startswith(name) for one in names_of(trace))
        ]

    def latest(self) -> list[Trace]:
        """All of them, the last first."""
        return list(reversed(self._traces))


def names_of(trace: Trace) -> list[str]:
    """Returns what a request may be asked for by."""
    of_trace = [] if trace.context is None else [trace.context.trace_id]
    return [trace.request_id, *trace.graph_ids, *of_trace]


def summary_of(trace: Trace) -> JsonMap:
    """Who and how, in one line; what is not known is left out."""
    timeline = trace.timeline
    known = {
        "request_id": trace.request_id,
        "trace_id": None if trace.context is None else trace.context.trace_id,
        "ids": trace.graph_ids or None,
        "method": trace.method,
        "path": trace.path,
        "status": trace.status,
        "outcome": trace.outcome,
        "seconds": rounded(trace.seconds),
        "ttft_s": rounded(timeline.seconds_to(FIRST_TEXT)),
        "ttfp_s": rounded(timeline.seconds_to(FIRST_AUDIO)),
        "tokens_in": trace.num_tokens_in or None,
        "tokens_out": trace.num_tokens_out or None,
        "audio_s": rounded(trace.audio_s or None),
        "images": trace.num_images or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def rounded(seconds: float | None) -> float | None:
    """To a tenth of a millisecond."""
    return None if seconds is None else round(seconds, 4)


def details_of(trace: Trace) -> JsonMap:
    """A request with its stamps, and the steps and stages between them, ms from its receipt."""
    timeline = trace.timeline
    zero_ns = timeline.marks.get((GATEWAY, RECEIVED), 0)

    def ms(at_ns: int) -> float:
        return round((at_ns - zero_ns) / 1e6, 3)

    return {
        **summary_of(trace),
        "began_at": round(trace.began_at, 3),
        "timeline": timeline.to_list(),
        "steps": [
            {
                "stage": step.stage,
                "event": step.event,
                "start_ms": ms(step.start_ns),
                "end_ms": ms(step.end_ns),
            }
            for step in timeline.steps
        ],
        "stages": [
            {"stage": stage, "start_ms": ms(start_ns), "end_ms": ms(end_ns)}
            for stage, (start_ns, end_ns) in timeline.stages.items()
        ],
    }
