"""Adds replicas to stages and takes them away, while requests run."""

import asyncio

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.draining import Draining
from omnistage.server.runtime.fleet import Fleet, StageDied
from omnistage.server.runtime.readiness import unavailable
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.replicas import number_of


class Scaling:
    """Makes one change at a time; none while a command waits for requests to end."""

    def __init__(self, fleet: Fleet, draining: Draining) -> None:
        self._fleet = fleet
        self._draining = draining
        self._changes: set[asyncio.Task[None]] = set()

    async def scale(self, stage: str, num_replicas: int) -> None:
        """Return once so many replicas run, all ready that were added.

        It goes on if its caller is cancelled. Raises ApiError while the server's stages load, for a
        replica that cannot be started, and if the requests of one that goes do not end; then it
        stays.
        """
        if not self._fleet.has_settled:
            raise unavailable("The stages are still loading.", code="loading")
        change = asyncio.create_task(self._scale(stage, num_replicas))
        self._changes.add(change)
        change.add_done_callback(self._forget)
        await asyncio.shield(change)

    def _forget(self, change: asyncio.Task[None]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # its caller may have gone

    async def close(self) -> None:
        """Let go of what has not ended: the fleet ends every replica that runs."""
        changes = list(self._changes)
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)

    async def _scale(self, stage: str, num_replicas: int) -> None:
        async with self._draining.lock:
            links = self._fleet.replicas_of(stage)
            await self._add(stage, num_replicas - len(links))
            await self._remove(sorted(links, key=_worth)[: max(0, len(links) - num_replicas)])

    async def _add(self, stage: str, num_more: int) -> None:
        every = self._fleet.graph.stages[stage].all_replicas
        absent = [one.name for one in every if one.name not in self._fleet.stages]
        adding = (self._fleet.add(name) for name in absent[: max(0, num_more)])
        for done in await asyncio.gather(*adding, return_exceptions=True):
            if isinstance(done, StageDied):
                raise ApiError(500, f"It was not added: {done}.", code="stage_not_started")
            if done is not None:
                raise done

    async def _remove(self, links: list[StageLink]) -> None:
        async with self._draining.closed(links):
            await asyncio.gather(*(self._fleet.remove(link.name) for link in links))


def _worth(link: StageLink) -> tuple[bool, bool, int]:
    """Orders replicas for removal: idle ones first, of them those that are down; then the last."""
    return link.is_open, link.is_ready, -number_of(link.name)
