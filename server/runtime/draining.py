"""Empties a stage of requests before it sleeps, wakes, gets new weights or goes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.changes import WEIGHTS
from omnistage.server.runtime.command import check_command
from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.flights import Flights
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.json_types import JsonMap


class Draining:
    """Runs one such command at a time, on several replicas at once."""

    def __init__(self, fleet: Fleet, flights: Flights) -> None:
        self._fleet = fleet
        self._flights = flights
        self._limit_s = fleet.graph.deadlines.command_s
        self.lock = asyncio.Lock()  # of what is done to replicas that have no request

    async def run(self, links: Sequence[StageLink], command: str, arguments: JsonMap) -> None:
        """Refuse new requests, let those in flight finish, then send it to all replicas.

        Each answers what of it is asleep now; while that is anything, it stays closed. Raises
        ApiError before anything is done if one of them does not take the command, and after all
        have answered if one of them failed. A replica that has failed to load what another of its
        stage has loaded gets no more requests.
        """
        async with self.lock:
            for link in links:
                check_command(link, command)
            async with self.closed(links):
                sending = (self._send(link, command, arguments) for link in links)
                answers = await asyncio.gather(*sending, return_exceptions=True)
                done = [link for link, error in zip(links, answers, strict=True) if error is None]
                self._note(links, done, command, arguments)
        for answer in answers:
            if answer is not None:
                raise answer

    def _note(
        self,
        links: Sequence[StageLink],
        done: Sequence[StageLink],
        command: str,
        arguments: JsonMap,
    ) -> None:
        self._fleet.note_change(done, command, arguments)
        if command == WEIGHTS:
            stages = {link.stage for link in done}
            differing = [link for link in links if link.stage in stages and link not in done]
            self._fleet.note_missed(differing, command, arguments)

    @asynccontextmanager
    async def closed(self, links: Sequence[StageLink]) -> AsyncIterator[None]:
        """Inside it these replicas have no request; raises ApiError if theirs do not end."""
        self._fleet.refuse_requests(links)
        try:
            await self._drain(links)
            yield
        finally:
            self._fleet.accept_requests(links)

    async def _drain(self, links: Sequence[StageLink]) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await self._flights.drained(links)
        except TimeoutError:
            names = ", ".join(link.name for link in links)
            message = f"Requests in stages {names} did not end within {self._limit_s:g} s."
            raise ApiError(503, message, code="busy") from None

    async def _send(self, link: StageLink, command: str, arguments: JsonMap) -> None:
        result = await self._fleet.commander.send(link, command, arguments)
        self._fleet.note_asleep(link, tuple(result["asleep"]))
