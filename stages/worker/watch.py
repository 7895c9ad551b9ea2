"""Waiting for a stage upstream: for how long, and what is said of it in the end."""

import time

from omnistage.stage_configs.graph import Deadlines
from omnistage.stages.worker.failure import RequestError


class Watch:
    """When the next input of one request is due; each that comes moves it.

    In seconds of time.monotonic, which is the event loop's clock too.
    """

    __slots__ = ("_next_chunk_s", "due_at")

    def __init__(self, deadlines: Deadlines) -> None:
        self.due_at = time.monotonic() + deadlines.first_chunk_s
        self._next_chunk_s = deadlines.next_chunk_s

    def restart(self) -> None:
        """Something came, or the wait is ours: count from now."""
        self.due_at = time.monotonic() + self._next_chunk_s

    @property
    def is_overdue(self) -> bool:
        """Returns whether nothing came in time."""
        return time.monotonic() >= self.due_at


def overdue(source: str, target: str) -> RequestError:
    """The failure of a request whose next chunk did not come."""
    message = f"Edge {source} -> {target}: the next chunk of stage {source} did not come in time."
    return RequestError(504, message, code="stage_timeout")
