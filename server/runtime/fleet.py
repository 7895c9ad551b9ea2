"""The stages of one graph: starts and ends them, reads their channels, reports how they are."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChannelUsage, Losses
from omnistage.server.runtime.processes.channels import Channels, MakeConnector
from omnistage.server.runtime.processes.openings import Openings
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.server.runtime.processes.supervisor import Supervisor
from omnistage.server.runtime.readiness import dead, lost
from omnistage.server.runtime.running import OwnedReplicas
from omnistage.server.runtime.stage_link import (
    OwnedStage,
    Release,
    StageLauncher,
    StageLink,
    release_nothing,
)
from omnistage.server.runtime.stage_record import StageState
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.addresses import (
    GATEWAY,
    ends_of,
    outputs_address,
    requests_address,
)
from omnistage.stages.messages.to_gateway import (
    TO_GATEWAY,
    Alive,
    CommandResult,
    Compiling,
    OfItself,
    OfRequest,
    Ready,
    ToGateway,
)
from omnistage.stages.messages.to_stage import Stop

logger = logging.getLogger(__name__)

Ends = tuple[str, str]  # an edge, by the names of its stages


class StageDied(Exception):
    """The end of a stage before the graph was ready."""

    def __init__(self, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class Keeper(NamedTuple):
    """Who keeps one replica alive."""

    supervisor: Supervisor
    keeping: asyncio.Task[None]


class Fleet(OwnedReplicas):
    """Owns the replicas of one graph's stages, with their channels, supervisors and commands.

    It and its supervisors are the only writers of a replica's record.
    """

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        launch: StageLauncher = StageProcess,
        make_connector: MakeConnector = make_connector,
        release: Release = release_nothing,
    ) -> None:
        super().__init__(graph, directory)
        self.openings = Openings()
        self._launch = launch
        self._release = release
        self._channels = Channels(graph, directory, make_connector)
        self._losses: list[Losses] = []
        self._keepers: dict[str, Keeper] = {}
        self._settled = asyncio.Event()

    def listen(
        self,
        on_output: Callable[[StageLink, Chunk[OfRequest]], None],
        on_death: Callable[[StageLink], None],
        on_loss: Callable[[Collection[Ends]], None],
        on_compiling: Callable[[StageLink], None],
    ) -> None:
        """Name who gets what stages send for requests, and who is called after a failure.

        `on_death`: when a stage has ended. `on_loss`: when edges are lost, by their two stages.
        `on_compiling`: again and again while a stage compiles and so computes nothing.
        """
        self._on_output = on_output
        self._report_death = on_death
        self._report_loss = on_loss
        self._report_compiling = on_compiling

    # Life

    async def start(self) -> None:
        """Start every stage at once; they load while we already listen."""
        self._channels.create()
        loop = asyncio.get_running_loop()
        for losses in self._channels.losses():
            self._losses.append(losses)
            loop.add_reader(losses.fileno(), self._on_losses, losses)
        (self._directory / "graph.json").write_text(self.graph.model_dump_json())
        names = [
            replica.name
            for spec in self.graph.stages.values()
            for replica in spec.all_replicas[: spec.num_replicas]
        ]
        for name in names:  # all are known before the first may be ready
            self._make_link(name)
        for name in names:
            await self._start_replica(name)

    def _make_link(self, name: str) -> None:
        gateway = self._channels.gateway
        requests = gateway.sender(requests_address(name))
        outputs = gateway.receiver(outputs_address(name), TO_GATEWAY)
        link = self._links[name] = OwnedStage(name, requests, outputs, self.openings.note)
        loop = asyncio.get_running_loop()
        loop.add_reader(outputs.fileno(), self._receive, link)
        loop.add_reader(requests.fileno(), link.flush)

    async def _start_replica(self, name: str) -> None:
        supervisor = Supervisor(
            self._links[name],
            self._launch,
            self._directory,
            self.graph.deadlines,
            self._on_death,
            self._channels.renew,
        )
        try:
            await supervisor.start()
        except asyncio.CancelledError:
            await supervisor.stop()  # nobody else knows of it yet
            raise
        self._keepers[name] = Keeper(supervisor, asyncio.create_task(supervisor.keep()))

    async def add(self, name: str) -> None:
        """Start a replica that does not run; raises StageDied if it ends before it is ready."""
        self._channels.renew(name)
        self._make_link(name)
        try:
            await self._start_replica(name)
        except Exception as error:
            self._close_link(self._links.pop(name))
            raise StageDied(f"stage {name} cannot be started: {error}", name) from error
        in_order = (one for one in self.graph.replicas if one in self._links)
        self._links = {one: self._links[one] for one in in_order}
        link = self._links[name]
        await link.has_begun.wait()
        if not link.record.was_ready:
            await self.remove(name)
            raise StageDied(f"stage {name} ended while it loaded: {link.record.ended_by}", name)

    async def remove(self, name: str) -> None:
        """End a replica that takes no request and has none, or has ended itself."""
        link, keeper = self._links[name], self._keepers[name]
        keeper.keeping.cancel()
        await asyncio.gather(keeper.keeping, return_exceptions=True)
        link.send(name, Stop())
        await keeper.supervisor.stop()
        del self._links[name], self._keepers[name]
        self.commander.fail(link, dead(link))
        self._close_link(link)
        await self._release(name)

    def _on_death(self, link: OwnedStage) -> None:
        self._receive(link)  # what it completed before it died
        if not link.record.was_ready:
            self._settled.set()
        self._report_death(link)
        self.commander.fail(link, dead(link))

    def _on_losses(self, losses: Losses) -> None:
        addresses = losses.losses()
        if addresses:
            self.lose({ends_of(address)[:2] for address in addresses})

    def lose(self, edges: Collection[Ends]) -> None:
        """Drops all that was on its way along these channels; one of their ends may be the
        gateway.
        """
        logger.error("lost edges: %s", ", ".join(f"{a} to {b}" for a, b in sorted(edges)))
        self._report_loss(sorted(edges))
        for source, target in edges:
            if target == GATEWAY and source in self._links:
                self.commander.fail(self._links[source], lost(source, target))

    async def stop_restarts(self) -> None:
        """From now on a stage that ends is not started again."""
        keeping = [keeper.keeping for keeper in self._keepers.values()]
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)

    async def close(self) -> None:
        """End every stage, then close and remove all channels."""
        for name, link in self._links.items():
            link.send(name, Stop())
        stops = {name: keeper.supervisor.stop() for name, keeper in self._keepers.items()}
        ends = await asyncio.gather(*stops.values(), return_exceptions=True)
        for name, failure in zip(stops, ends, strict=True):
            if failure is not None:
                logger.error("stage %s could not be ended", name, exc_info=failure)
        for link in self._links.values():
            self._close_link(link)
        for losses in self._losses:
            asyncio.get_running_loop().remove_reader(losses.fileno())
        self._channels.destroy()
        logger.info("all stages have ended")

    def _close_link(self, link: OwnedStage) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(link.outputs.fileno())
        loop.remove_reader(link.requests.fileno())
        link.close()

    def excuse(self, seconds: float) -> None:
        """Count no such time as silence of a stage: this process did not run."""
        logger.info("the server stood still for %.1f s", seconds)
        for keeper in self._keepers.values():
            keeper.supervisor.excuse(seconds)

    # State

    async def loaded(self) -> None:
        """Every replica is ready; StageDied if one ended first."""
        await self._settled.wait()
        for link in self._links.values():
            if link.record.state is StageState.DEAD:
                message = f"stage {link.name} ended while it loaded: {link.record.ended_by}"
                raise StageDied(message, link.name)

    @property
    def has_settled(self) -> bool:
        """Returns whether every replica was ready once, or one ended before."""
        return self._settled.is_set()

    @property
    def channel_usages(self) -> Mapping[str, ChannelUsage]:
        """Returns what goes through each channel, by its address; read from memory, no stage is
        asked.
        """
        running = {GATEWAY, *self._links}
        return {
            address: usage
            for address, usage in self._channels.usages()
            if running.issuperset(ends_of(address)[:2])
        }

    # What stages send

    def _receive(self, link: OwnedStage) -> None:
        while (chunk := link.outputs.receive()) is not None:
            self._receive_chunk(link, chunk)

    def _receive_chunk(self, link: OwnedStage, chunk: Chunk[ToGateway]) -> None:
        message = chunk.message
        if isinstance(message, OfItself):
            link.grant(chunk.request_id)
            self._apply(link, message)
        elif isinstance(message, CommandResult):
            self.commander.receive(chunk.request_id, message)
            link.forget(chunk.request_id)
        else:
            output = Chunk(chunk.request_id, message, chunk.index, chunk.tensors, chunk.last)
            self._on_output(link, output)

    def _apply(self, link: OwnedStage, message: OfItself) -> None:
        compiled_since = link.record.compiles_since
        link.apply(message)
        if isinstance(message, Compiling):
            if compiled_since is None:
                logger.warning("stage %s compiles; its requests wait", link.name)
            self._report_compiling(link)
        elif isinstance(message, Alive) and compiled_since is not None:
            seconds = asyncio.get_running_loop().time() - compiled_since
            logger.warning("stage %s has compiled for %.1f s", link.name, seconds)
        elif isinstance(message, Ready):
            logger.info("stage %s ready in %.1f s", link.name, message.seconds)
            self.repeat_changes(link)
            if all(one.is_ready for one in self._links.values()):
                self._settled.set()
