"""The stages of one graph: starts and ends them, reads their channels, reports how they are."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChannelUsage, Losses
from omnistage.server.errors import ApiError
from omnistage.server.runtime.channels import Channels, MakeConnector
from omnistage.server.runtime.command import Commander
from omnistage.server.runtime.process import StageProcess
from omnistage.server.runtime.readiness import check_open, check_ready, dead, lost
from omnistage.server.runtime.stage_link import OwnedStage, StageLauncher, StageLink, StageState
from omnistage.server.runtime.supervisor import Supervisor
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.addresses import (
    GATEWAY,
    ends_of,
    outputs_address,
    requests_address,
)
from omnistage.stages.messages.loading import Loading, read_loading
from omnistage.stages.messages.to_gateway import (
    TO_GATEWAY,
    Alive,
    Answer,
    Lora,
    Metrics,
    OfItself,
    OfRequest,
    Ready,
    Status,
    ToGateway,
)
from omnistage.stages.messages.to_stage import Stop

logger = logging.getLogger(__name__)

Ends = tuple[str, str]  # an edge, by the names of its stages


class StageDied(Exception):
    """A stage ended before the graph was ready."""


class Fleet:
    """Owns the stages of one graph with their channels, supervisors and commands.

    It and its supervisors are the only writers of a stage's record.
    """

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        launch: StageLauncher = StageProcess,
        make_connector: MakeConnector = make_connector,
    ) -> None:
        self.graph = graph
        self.commander = Commander(graph.deadlines.command_s)
        self._directory = directory
        self._launch = launch
        self._channels = Channels(graph, directory, make_connector)
        self._losses: list[Losses] = []
        self._links: dict[str, OwnedStage] = {}
        self._supervisors: list[Supervisor] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()

    def listen(
        self,
        on_output: Callable[[StageLink, Chunk[OfRequest]], None],
        on_death: Callable[[StageLink], None],
        on_loss: Callable[[Collection[Ends]], None],
    ) -> None:
        """Name who gets what stages send for requests, and who is called after a failure.

        `on_death`: when a stage has ended. `on_loss`: when edges are lost, by their two stages.
        """
        self._on_output = on_output
        self._report_death = on_death
        self._report_loss = on_loss

    # Life

    async def start(self) -> None:
        """Start every stage at once; they load while we already listen."""
        self._channels.create()
        loop = asyncio.get_running_loop()
        for losses in self._channels.losses():
            self._losses.append(losses)
            loop.add_reader(losses.fileno(), self._on_losses, losses)
        (self._directory / "graph.json").write_text(self.graph.model_dump_json())
        for name in self.graph.stages:
            await self._start_stage(name)

    async def _start_stage(self, name: str) -> None:
        gateway = self._channels.gateway
        requests = gateway.sender(requests_address(name))
        outputs = gateway.receiver(outputs_address(name), TO_GATEWAY)
        link = self._links[name] = OwnedStage(name, requests, outputs)
        loop = asyncio.get_running_loop()
        loop.add_reader(outputs.fileno(), self._receive, link)
        loop.add_reader(requests.fileno(), link.flush)
        supervisor = Supervisor(
            link,
            self._launch,
            self._directory,
            self.graph.deadlines,
            self._on_death,
            self._channels.renew,
        )
        await supervisor.start()
        self._supervisors.append(supervisor)
        self._keeping.append(asyncio.create_task(supervisor.keep()))

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
        """What was under way along these is gone, and their ends go on; one may be the gateway."""
        logger.error("lost edges: %s", ", ".join(f"{a} to {b}" for a, b in sorted(edges)))
        self._report_loss(sorted(edges))
        for source, target in edges:
            if target == GATEWAY:
                self.commander.fail(self._links[source], lost(source, target))

    async def stop_restarts(self) -> None:
        """From now on a stage that ends is not started again."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def close(self) -> None:
        """End every stage, then close and remove all channels."""
        for name, link in self._links.items():
            link.send(name, Stop())
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        loop = asyncio.get_running_loop()
        for link in self._links.values():
            loop.remove_reader(link.outputs.fileno())
            loop.remove_reader(link.requests.fileno())
            link.close()
        for losses in self._losses:
            loop.remove_reader(losses.fileno())
        self._channels.destroy()
        logger.info("all stages have ended")

    # State

    async def loaded(self) -> None:
        """Every stage is ready; StageDied if one ended first."""
        await self._settled.wait()
        for link in self._links.values():
            if link.record.state is StageState.DEAD:
                raise StageDied(f"stage {link.name} ended while it loaded: {link.record.ended_by}")

    @property
    def unready(self) -> Mapping[str, StageState]:
        """The stages that cannot serve, and why."""
        return {
            link.name: link.record.state
            for link in self._links.values()
            if link.record.state is not StageState.READY
        }

    @property
    def is_broken(self) -> bool:
        """Whether a stage has ended and is not started again."""
        return any(link.record.is_lost for link in self._links.values())

    @property
    def health(self) -> Mapping[str, Mapping[str, Any]]:
        """What each stage last said of itself."""
        loading = self.loading
        return {
            name: {
                **link.record.health,
                "phase": str(loading[name].phase) if name in loading else "",
            }
            for name, link in self._links.items()
        }

    @property
    def loading(self) -> Mapping[str, Loading]:
        """How far each stage is that loads."""
        return {
            name: read_loading(self._directory, name) or Loading()
            for name, link in self._links.items()
            if link.record.state is StageState.LOADING
        }

    @property
    def voices(self) -> Sequence[str]:
        """The voices that the graph's stages know."""
        return sorted({name for link in self._links.values() for name in link.record.speakers})

    @property
    def loras(self) -> Sequence[Lora]:
        """The adapters of the texts' entry stage that are models of their own."""
        if "text" not in self.graph.outputs:
            return ()
        return self._links[self.graph.entry_of("text")].record.loras or ()

    @property
    def stages(self) -> Mapping[str, StageLink]:
        """Every stage as it is now."""
        return self._links

    @property
    def channel_usages(self) -> Mapping[str, ChannelUsage]:
        """What goes through each channel, by its address; read from memory, no stage is asked."""
        return dict(self._channels.usages())

    # Requests

    def entries(self, outputs: Collection[str]) -> Sequence[StageLink]:
        """The stages that get requests for these outputs."""
        return [self._links[name] for name in self.graph.entries(outputs)]

    def open_path(self, outputs: Collection[str], goes_on: bool = False) -> Sequence[StageLink]:
        """The stages on the way to these outputs; ApiError if one takes no requests now.

        A request that goes on with an answer is taken also while a stage lets its last ones finish.
        """
        path = [self._links[name] for name in self.graph.path(outputs)]
        for link in path:
            check_ready(link) if goes_on else check_open(link)
        return path

    def refuse_requests(self, links: Collection[StageLink]) -> None:
        """No request comes to these stages from now on."""
        for link in links:
            self._links[link.name].refuse_requests()

    def accept_requests(self, links: Collection[StageLink]) -> None:
        """Requests come to these stages again, but for those of which something sleeps."""
        for link in links:
            self._links[link.name].accept_requests()

    def note_overdue(self, path: Collection[StageLink], limit_s: float) -> None:
        """A request waited for longer than `limit_s` for whichever of these does not get on."""
        for link in path:
            self._links[link.name].note_overdue(limit_s)

    # Commands

    def note_asleep(self, link: StageLink, parts: tuple[str, ...]) -> None:
        """A stage has answered that these parts of it sleep now."""
        self._links[link.name].note_asleep(parts)

    def note_loras(self, link: StageLink, loras: Sequence[Lora]) -> None:
        """A stage has answered that it has these adapters now."""
        self._links[link.name].note_loras(tuple(loras))

    def fail_commands(self, error: ApiError) -> None:
        """No stage answers any command that it was sent."""
        for link in self._links.values():
            self.commander.fail(link, error)

    # What stages send

    def _receive(self, link: OwnedStage) -> None:
        while (chunk := link.outputs.receive()) is not None:
            self._receive_chunk(link, chunk)

    def _receive_chunk(self, link: OwnedStage, chunk: Chunk[ToGateway]) -> None:
        message = chunk.message
        if isinstance(message, Ready | Status | Alive | Metrics):
            link.grant(chunk.request_id)
            self._apply(link, message)
        elif isinstance(message, Answer):
            self.commander.receive(chunk.request_id, message)
            link.forget(chunk.request_id)
        else:
            output = Chunk(chunk.request_id, message, chunk.index, chunk.tensors, chunk.last)
            self._on_output(link, output)

    def _apply(self, link: OwnedStage, message: OfItself) -> None:
        link.apply(message)
        if isinstance(message, Ready):
            logger.info("stage %s ready in %.1f s", link.name, message.seconds)
            if not self.unready:
                self._settled.set()
