"""A request of a stage with several edges to it, until each of them has announced it."""

import asyncio
from collections.abc import Callable, Sequence

from omnistage.stages.worker.requests.watch import Watch
from omnistage.stages.worker.stage import Opened


class Joining:
    """The parts of one request so far: announcements, and input before the last of them.

    How much comes early is bounded by the credit of each edge, and by what one request is.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self._opened: dict[str, Opened] = {}
        self._early: list[Callable[[], None]] = []
        self._is_complete = asyncio.Event()

    def add(self, source: str, opened: Opened) -> None:
        """A stage upstream has announced the request."""
        self._opened[source] = opened
        if not self.missing:
            self._is_complete.set()

    @property
    def missing(self) -> list[str]:
        """The stages upstream that have not announced it yet."""
        return [source for source in self._sources if source not in self._opened]

    def put_off(self, delivery: Callable[[], None]) -> None:
        """Do this once the stage serves the request."""
        self._early.append(delivery)

    async def opened(self, watch: Watch) -> Opened:
        """All announcements as one, in the order of the stage's edges; raises TimeoutError."""
        if not await watch.sees(self._is_complete):
            raise TimeoutError
        opens = {source: self._opened[source] for source in self._sources}
        first = opens[self._sources[0]]
        return Opened(first.id, first.message, first.tensors, opens)

    def deliver(self) -> None:
        """Do what was put off, in the order in which it came."""
        for delivery in self._early:
            delivery()
