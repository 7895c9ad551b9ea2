"""Waiting for a stage upstream: for how long, and the failure if that was too short."""

import asyncio
from contextlib import suppress

from omnistage.connectors.standstill import Standstills
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.worker.failure import RequestError


class Watch:
    """When the next input of one request is due; each that comes moves it.

    In seconds of the event loop's clock in which the loop ran.
    """

    __slots__ = ("_due_at", "_next_chunk_s", "_standstills")

    def __init__(self, deadlines: Deadlines, standstills: Standstills) -> None:
        self._standstills = standstills
        self._next_chunk_s = deadlines.next_chunk_s
        self._wait(deadlines.first_chunk_s)

    def _wait(self, limit_s: float) -> None:
        now = asyncio.get_running_loop().time()
        self._due_at = now + limit_s - self._standstills.total_s

    def restart(self) -> None:
        """Something came, or the wait is ours: count from now."""
        self._wait(self._next_chunk_s)

    async def sees(self, event: asyncio.Event) -> bool:
        """Wait for an event; returns whether it was set before the next input is overdue."""
        while not event.is_set() and not self.is_overdue:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due_at + self._standstills.total_s):
                    await event.wait()
        return event.is_set()

    @property
    def is_overdue(self) -> bool:
        """Returns whether the next input should be here."""
        now = asyncio.get_running_loop().time()
        return now >= self._due_at + self._standstills.total_s


def overdue(source: str, target: str) -> RequestError:
    """The failure of a request whose next chunk did not come."""
    message = f"Edge {source} -> {target}: the next chunk of stage {source} did not come in time."
    return RequestError(504, message, code="stage_timeout")
