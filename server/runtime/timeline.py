"""Where a request's time went: what its stages and the gateway stamped, on one clock.

All processes of a machine share the monotonic clock, so stamps of different processes compare.
"""

import time
from dataclasses import dataclass, field
from typing import Any

GATEWAY = "gateway"


@dataclass(slots=True)
class Timeline:
    """The stamps of one request, from the moment the gateway read it."""

    marks: list[tuple[int, str, str]] = field(default_factory=list)  # ns, stage, event

    def mark(self, stage: str, event: str, at_ns: int | None = None) -> None:
        """Add a stamp, now or as a stage took it; of one event only the first counts."""
        if any(mark[1:] == (stage, event) for mark in self.marks):
            return
        self.marks.append((time.monotonic_ns() if at_ns is None else at_ns, stage, event))

    def to_list(self) -> list[dict[str, Any]]:
        """In the order of time, ms after the first."""
        marks = sorted(self.marks)
        return [
            {"stage": stage, "event": event, "ms": round((at_ns - marks[0][0]) / 1e6, 3)}
            for at_ns, stage, event in marks
        ]
