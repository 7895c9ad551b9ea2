"""Runs a graph: starts its stages, hands them requests, merges what comes back by request id."""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChunkTooLarge
from omnistage.server.errors import ApiError
from omnistage.server.runtime.channels import Channels, MakeConnector
from omnistage.server.runtime.command import Commander
from omnistage.server.runtime.flight import InFlight, Item
from omnistage.server.runtime.process import StageProcess
from omnistage.server.runtime.readiness import check_open, dead
from omnistage.server.runtime.request import Output, Request, output_of
from omnistage.server.runtime.stage_link import StageLauncher, StageLink, StageState
from omnistage.server.runtime.supervisor import Supervisor
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.runtime.timeline import GATEWAY
from omnistage.server.runtime.work_check import check_work
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.addresses import outputs_address, requests_address
from omnistage.stages.messages.to_gateway import (
    TO_GATEWAY,
    Alive,
    Answer,
    Failed,
    Mark,
    OfItself,
    Ready,
    Status,
    ToGateway,
    output_name,
)
from omnistage.stages.messages.to_gateway import (
    Output as OutputMessage,
)
from omnistage.stages.messages.to_stage import Stop

logger = logging.getLogger(__name__)

MAX_REQUESTS = 1000
RETRY_OVERLOAD_S = 1


class StageDied(Exception):
    """A stage ended before the graph was ready."""


class Orchestrator:
    """Owns the stages of one graph and the requests in them; an async context."""

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        launch: StageLauncher = StageProcess,
        make_connector: MakeConnector = make_connector,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        self.graph = graph
        self._directory = directory
        self._launch = launch
        self._channels = Channels(graph, directory, make_connector)
        self._max_requests = max_requests
        self._tickets: set[Ticket] = set()
        self._links: dict[str, StageLink] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._watchers: list[Callable[[InFlight], None]] = []
        self._supervisors: list[Supervisor] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()
        self.commander = Commander(graph.deadlines.command_s)

    # Life

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _start(self) -> None:
        """Start every stage at once; they load while we already listen."""
        self._channels.create()
        (self._directory / "graph.json").write_text(self.graph.model_dump_json())
        for name in self.graph.stages:
            await self._start_stage(name)

    async def _start_stage(self, name: str) -> None:
        gateway = self._channels.gateway
        requests = gateway.sender(requests_address(name))
        outputs = gateway.receiver(outputs_address(name), TO_GATEWAY)
        link = self._links[name] = StageLink(name, requests, outputs)
        loop = asyncio.get_running_loop()
        loop.add_reader(outputs.fileno(), self._receive, link)
        loop.add_reader(requests.fileno(), requests.flush)
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

    def _on_death(self, link: StageLink) -> None:
        self._receive(link)  # what it completed before it died
        if not link.was_ready:
            self._settled.set()
        for flight in self._in_flight.values():
            if link in flight.path:
                flight.fail(dead(link))
        self.commander.fail(link, dead(link))

    async def _close(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        self.end_requests()
        for name, link in self._links.items():
            link.tell(name, Stop())
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        loop = asyncio.get_running_loop()
        for link in self._links.values():
            loop.remove_reader(link.outputs.fileno())
            loop.remove_reader(link.requests.fileno())
            link.state = StageState.DEAD
            link.requests.close()
            link.outputs.close()
        self._channels.destroy()
        logger.info("all stages have ended")

    # State

    async def loaded(self) -> None:
        """Every stage is ready; StageDied if one ended first."""
        await self._settled.wait()
        for link in self._links.values():
            if link.state is StageState.DEAD:
                raise StageDied(f"stage {link.name} ended while it loaded: {link.ended_by}")

    @property
    def unready(self) -> Mapping[str, StageState]:
        """The stages that cannot serve, and why."""
        return {
            link.name: link.state
            for link in self._links.values()
            if link.state is not StageState.READY
        }

    @property
    def is_broken(self) -> bool:
        """Whether a stage has ended and is not started again."""
        return any(link.is_lost for link in self._links.values())

    @property
    def health(self) -> Mapping[str, Mapping[str, Any]]:
        """What each stage last said of itself."""
        return {name: link.health for name, link in self._links.items()}

    @property
    def speakers(self) -> Sequence[str]:
        """The voices that the graph's stages know."""
        return sorted({name for link in self._links.values() for name in link.speakers})

    @property
    def stages(self) -> Mapping[str, StageLink]:
        """Every stage as it is now."""
        return self._links

    @property
    def num_running(self) -> int:
        """Requests some output of which has come, until their answers have ended."""
        return sum(ticket.has_output for ticket in self._tickets)

    @property
    def num_waiting(self) -> int:
        """Requests that are prepared, or in the graph without an output yet."""
        return len(self._tickets) - self.num_running

    # Requests

    def watch(self, on_end: Callable[[InFlight], None]) -> None:
        """Have it called with every request that leaves the graph, however it ended."""
        self._watchers.append(on_end)

    async def drained(self, links: Collection[StageLink]) -> None:
        """Every request that has one of these stages in its path has ended."""
        for flight in list(self._in_flight.values()):
            if any(link in links for link in flight.path):
                await flight.ended.wait()

    def admit(self, outputs: Iterable[str]) -> Ticket:
        """A place for a request for these outputs; ApiError if it cannot be taken now."""
        self._open_path(outputs)
        if len(self._tickets) >= self._max_requests:
            raise ApiError(
                503,
                f"The server already has {self._max_requests} requests.",
                code="server_overloaded",
                retry_after_s=RETRY_OVERLOAD_S,
            )
        ticket = Ticket(self._run, self._tickets.discard)
        self._tickets.add(ticket)
        return ticket

    def _open_path(self, outputs: Iterable[str]) -> Sequence[StageLink]:
        """The stages on the way to these outputs; ApiError if one takes no requests now."""
        path = [self._links[name] for name in self.graph.path(set(outputs))]
        for link in path:
            check_open(link)
        return path

    def end_requests(self) -> None:
        """Fail every request and command in flight: the server is about to end."""
        stopping = ApiError(503, "The server is shutting down.", code="stopping")
        for flight in self._in_flight.values():
            flight.queue.put_nowait(stopping)
        for link in self._links.values():
            self.commander.fail(link, stopping)

    async def _run(self, request: Request, ticket: Ticket) -> AsyncGenerator[Output, None]:
        path = self._open_path(request.outputs)
        check_work(request, path)
        now = self._now()
        due_at = dict.fromkeys(request.outputs, now + self.graph.deadlines.first_chunk_s)
        flight = InFlight(request, path, now, due_at)
        ticket.flight = self._in_flight[request.id] = flight
        try:
            self._open(request)
            async with aclosing(self._outputs(request.id, flight)) as outputs:
                async for output in outputs:
                    yield output
        except Exception as error:
            flight.failure = error
            raise
        finally:
            del self._in_flight[request.id]
            flight.ended.set()
            for link in flight.path:
                link.finish(request.id, is_cancelled=bool(flight.due_at))
            for on_end in self._watchers:
                on_end(flight)

    def _open(self, request: Request) -> None:
        if request.timeline is not None:
            request.timeline.mark(GATEWAY, "sent")
        try:
            self._links[self.graph.entry].requests.send(request.to_chunk())
        except ChunkTooLarge as error:
            message = f"The request is too large: {error}"
            raise ApiError(413, message, code="request_too_large") from error
        except (OverflowError, UnicodeError) as error:  # JSON allows what the wire does not
            raise ApiError(400, f"The request has a value that cannot be sent: {error}") from error

    async def _outputs(self, request_id: str, flight: InFlight) -> AsyncGenerator[Output, None]:
        while flight.due_at:
            item = await self._next(flight)
            if isinstance(item, ApiError):
                raise item
            link, chunk = item
            link.grant(request_id)
            message = chunk.message
            if isinstance(message, Failed):
                raise ApiError.from_stage(message)
            name = output_name(message)
            if name in flight.due_at:
                if chunk.last:
                    del flight.due_at[name]
                if chunk.last or chunk.tensors:
                    flight.count(chunk)
                given_at = self._now()
                yield output_of(message, chunk.tensors, chunk.last)
                held_s = self._now() - given_at  # while we were not asked for more, nor asked
                for kind in flight.due_at:
                    flight.due_at[kind] += held_s

    async def _next(self, flight: InFlight) -> Item | ApiError:
        """The next item; ApiError once an output is overdue."""
        while flight.queue.empty():
            kind = min(flight.due_at, key=flight.due_at.__getitem__)
            try:
                async with asyncio.timeout_at(flight.due_at[kind]):
                    return await flight.queue.get()
            except TimeoutError:
                if flight.due_at[kind] <= self._now():
                    raise self._overdue(flight, kind) from None
        return flight.queue.get_nowait()

    def _overdue(self, flight: InFlight, kind: str) -> ApiError:
        stage = self.graph.outputs[kind]
        deadlines = self.graph.deadlines
        for link in flight.path:  # whichever of them does not get on
            link.miss(
                deadlines.next_chunk_s if kind in flight.first_at else deadlines.first_chunk_s
            )
        logger.error("stage %s: no %s in time", stage, kind)
        return ApiError(504, f"Stage {stage} sent no {kind} in time.", code="stage_timeout")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _receive(self, link: StageLink) -> None:
        while (chunk := link.outputs.receive()) is not None:
            self._receive_chunk(link, chunk)

    def _receive_chunk(self, link: StageLink, chunk: Chunk[ToGateway]) -> None:
        message = chunk.message
        if isinstance(message, Ready | Status | Alive):
            link.grant(chunk.request_id)
            self._hear(link, message)
            return
        if isinstance(message, Answer):
            self.commander.hear(chunk.request_id, message)
        flight = self._in_flight.get(chunk.request_id)
        if flight is None or isinstance(message, Answer):  # it crossed our cancel
            link.forget(chunk.request_id)
        elif isinstance(message, Mark):
            link.grant(chunk.request_id)
            if flight.request.timeline is not None:
                flight.request.timeline.mark(link.name, message.event, message.at_ns)
        else:
            if not isinstance(message, Failed):
                self._postpone(flight, message, chunk)
            told = Chunk(chunk.request_id, message, chunk.index, chunk.tensors, chunk.last)
            flight.queue.put_nowait((link, told))

    def _postpone(self, flight: InFlight, message: OutputMessage, chunk: Chunk[ToGateway]) -> None:
        """An output has come: when the next must be here."""
        name = output_name(message)
        if name in flight.due_at:
            now = self._now()
            flight.due_at[name] = now + self.graph.deadlines.next_chunk_s
            if chunk.tensors or not chunk.last:  # else it is no more than an end
                flight.first_at.setdefault(name, now)

    def _hear(self, link: StageLink, message: OfItself) -> None:
        link.hear(message)
        if isinstance(message, Ready):
            logger.info("stage %s ready in %.1f s", link.name, message.seconds)
            if not self.unready:
                self._settled.set()
