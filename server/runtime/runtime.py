"""A graph that is served: its stages and the requests in them, started and ended in order."""

from pathlib import Path
from typing import Self

from omnistage.connectors import make_connector
from omnistage.connectors.standstill import Standstills
from omnistage.server.runtime.draining import Draining
from omnistage.server.runtime.first_sound import SpokenPlaces
from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.flights import MAX_REQUESTS, Flights
from omnistage.server.runtime.processes.channels import MakeConnector
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.server.runtime.readiness import stopping
from omnistage.server.runtime.scaling import Scaling
from omnistage.server.runtime.stage_link import Release, StageLauncher, release_nothing
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import generates_audio


class Runtime:
    """Holds the fleet and the flights of a graph, and what needs both; an async context."""

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        launch: StageLauncher = StageProcess,
        make_connector: MakeConnector = make_connector,
        max_requests: int = MAX_REQUESTS,
        release: Release = release_nothing,
        first_sound_s: float | None = None,
    ) -> None:
        self.graph = graph
        self.fleet = Fleet(graph, directory, launch, make_connector, release)
        spoken = None
        if first_sound_s is not None and not generates_audio(graph):
            spoken = SpokenPlaces(first_sound_s)
        self.flights = Flights(self.fleet, max_requests, spoken)
        self.draining = Draining(self.fleet, self.flights)
        self.scaling = Scaling(self.fleet, self.draining)

    async def __aenter__(self) -> Self:
        self._standstills = Standstills(self._excuse)
        self._standstills.start()
        try:
            await self.fleet.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    def _excuse(self, seconds: float) -> None:
        self.fleet.excuse(seconds)
        self.flights.excuse(seconds)

    async def _close(self) -> None:
        await self.scaling.close()
        await self.fleet.stop_restarts()
        self.end_requests()
        await self.fleet.close()
        self._standstills.stop()

    def end_requests(self) -> None:
        """Fail every request and command in flight: the server is about to end."""
        error = stopping()
        self.flights.end(error)
        self.fleet.fail_commands(error)
