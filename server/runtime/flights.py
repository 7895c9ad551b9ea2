"""The requests in a graph: their places, their ways through the stages, their deadlines."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from functools import partial

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChunkTooLarge
from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.common.trace import GATEWAY, current_trace
from omnistage.server.runtime.arrivals import Intake, loop_time
from omnistage.server.runtime.first_sound import SpokenPlaces
from omnistage.server.runtime.fleet import Ends, Fleet
from omnistage.server.runtime.flight import Flight, Ticket
from omnistage.server.runtime.inputs import MediaInput, TextInput
from omnistage.server.runtime.readiness import dead, lost, stopping
from omnistage.server.runtime.request import HAS_LIMITS, GraphRequest, Output
from omnistage.server.runtime.routes import Routes
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stages.messages.addresses import GATEWAY as GATEWAY_END
from omnistage.stages.messages.to_gateway import OfRequest

logger = logging.getLogger(__name__)

MAX_REQUESTS = 1000
RETRY_OVERLOAD_S = 1
SPEECH = "audio"  # of the outputs


class Flights:
    """Admits requests, runs them through the stages of a fleet, and cancels and fails them."""

    def __init__(
        self,
        fleet: Fleet,
        max_requests: int = MAX_REQUESTS,
        spoken: SpokenPlaces | None = None,
    ) -> None:
        self._fleet = fleet
        self._graph = fleet.graph
        self._routes = Routes()
        self.max_requests = max_requests  # that have a place at once
        self.spoken = spoken  # None: without a limit of their first sound
        self._intake = Intake(fleet, spoken)
        self._tickets: set[Ticket] = set()
        self._flights: dict[str, Flight] = {}
        self._watchers: list[Callable[[Flight], None]] = []
        self.is_stopping = False  # whether nothing is admitted any more
        fleet.listen(self._receive, self._on_death, self._on_loss, self._on_compiling)

    @property
    def num_running(self) -> int:
        """Requests some output of which has come, until their answers have ended."""
        return sum(ticket.has_output for ticket in self._tickets)

    @property
    def num_waiting(self) -> int:
        """Requests that are prepared, or in the graph without an output yet."""
        return len(self._tickets) - self.num_running

    @property
    def is_empty(self) -> bool:
        """Returns whether nobody has a place: every answer has ended."""
        return not self._tickets

    def stop_admitting(self) -> None:
        """Refuse every request from now on; those that have a place go on."""
        self.is_stopping = True
        self._fleet.openings.note()

    def watch(self, on_end: Callable[[Flight], None]) -> None:
        """Have it called with every request that leaves the graph, however it ended."""
        self._watchers.append(on_end)

    def excuse(self, seconds: float) -> None:
        """Count no such time as delay of an output or of a text: this process did not run."""
        for flight in self._flights.values():
            if flight.request.text is not None:
                flight.request.text.extend(seconds)
            flight.extend(seconds)

    async def drained(self, links: Collection[StageLink]) -> None:
        """Every request that has one of these replicas in its path has ended."""
        while flight := next((one for one in self._flights.values() if one.needs(links)), None):
            await flight.ended.wait()

    def admit(self, outputs: Collection[str]) -> Ticket:
        """A place for a request for these outputs; ApiError if it cannot be taken now."""
        if self.is_stopping:
            raise stopping()
        self._fleet.open_path(outputs)
        if len(self._tickets) >= self.max_requests:
            raise ApiError(
                503,
                f"The server already has {self.max_requests} requests.",
                code="server_overloaded",
                retry_after_s=RETRY_OVERLOAD_S,
            )
        now = loop_time()
        place = None
        if self.spoken is not None and SPEECH in outputs:
            place = self.spoken.take(now)
        ticket = Ticket(self._run, self._give_back, now, place)
        self._tickets.add(ticket)
        current_trace().timeline.mark(GATEWAY, "admitted")
        return ticket

    def end(self, error: ApiError) -> None:
        """Fail every request in the graph once what has come of it has been taken."""
        for flight in self._flights.values():
            flight.queue.put_nowait(error)

    def _on_death(self, link: StageLink) -> None:
        for flight in list(self._flights.values()):
            if link in flight.path and not self._send_again(flight, link):
                flight.fail(dead(link))

    def _on_loss(self, edges: Collection[Ends]) -> None:
        for flight in self._flights.values():
            names = {GATEWAY_END, *(link.name for link in flight.path)}
            for source, target in edges:
                if {source, target} <= names:
                    flight.fail(lost(source, target))
                    break

    def _on_compiling(self, link: StageLink) -> None:
        """Give the requests of a stage that compiles their time from now on."""
        for flight in self._flights.values():
            if link in flight.path:
                flight.postpone(loop_time(), self._graph.deadlines)

    def _send_again(self, flight: Flight, struck: StageLink) -> bool:
        """Send a request whose replica has ended to others, if its client has noticed nothing.

        It gets another name: of the old one its other stages are told to stop.
        """
        if not flight.may_go_again:
            return False
        try:
            path = self._routes.choose(self._fleet.open_path(flight.request.message.outputs))
            self._leave(flight, is_cancelled=True)
            flight.go_again(path, loop_time() + self._graph.deadlines.first_chunk_s)
            self._enter(flight)
            self._open(flight)
        except ApiError:
            return False
        flight.trace.timeline.mark(GATEWAY, "sent_again")
        logger.warning("request %s goes again: %s has ended", flight.request.id, struck.name)
        return True

    def _run(self, request: GraphRequest, ticket: Ticket) -> AsyncGenerator[Output, None]:
        return self._answer(self._begin(request, ticket))

    def _begin(self, request: GraphRequest, ticket: Ticket) -> Flight:
        """Send a request; ApiError if it cannot be."""
        outputs = request.message.outputs
        goes_on = bool(ticket.flights)
        is_awaited = any(not one.ended.is_set() for one in ticket.flights)  # before stages sleep
        path = self._routes.choose(self._fleet.open_path(outputs, is_awaited))
        if not HAS_LIMITS.isdisjoint(outputs):
            request.check_work(path)
        now = loop_time()
        flight = Flight(
            request,
            path,
            started_at=now,
            unfinished=list(outputs),
            deadlines=dict.fromkeys(outputs, now + self._graph.deadlines.first_chunk_s),
            goes_on=goes_on,
            waited_s=now - ticket.admitted_at,
            place=None if goes_on else ticket.place,
        )
        ticket.flights.append(flight)
        self._enter(flight)
        try:
            self._open(flight)
        except Exception as error:
            flight.failure = error
            self._end(flight)
            raise
        return flight

    async def _answer(self, flight: Flight) -> AsyncGenerator[Output, None]:
        """Returns what comes of a request that was sent."""
        sending: asyncio.Task[None] | None = None
        try:
            if flight.request.text is not None:
                sending = asyncio.create_task(self._send_text(flight, flight.request.text))
            async with aclosing(self._intake.outputs(flight)) as outputs:
                async for output in outputs:
                    yield output
        except Exception as error:
            flight.failure = error
            raise
        finally:
            if sending is not None:
                sending.cancel()
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        """Nobody asks for more of a request."""
        if flight.ended.is_set():
            return
        flight.end()
        self._leave(flight, flight.is_cancelled)
        for on_end in self._watchers:
            flight.trace.count(partial(on_end, flight))

    def _give_back(self, ticket: Ticket) -> None:
        for flight in ticket.flights:  # its outputs may never have been asked for
            self._end(flight)
        self._tickets.discard(ticket)
        if self.spoken is not None and ticket.place is not None:
            self.spoken.give_back(ticket.place, loop_time())
        self._fleet.openings.note()

    def _enter(self, flight: Flight) -> None:
        """From now on what stages send for the request is its flight's."""
        self._flights[flight.request.id] = flight
        self._routes.begin(flight.path)
        flight.trace.graph_ids.append(flight.request.id)

    def _leave(self, flight: Flight, is_cancelled: bool) -> None:
        """Nothing more comes of the request under its name."""
        del self._flights[flight.request.id]
        self._routes.end(flight.path)
        for link in flight.path:
            link.finish(flight.request.id, is_cancelled)

    def _entries(self, flight: Flight) -> list[StageLink]:
        """The replicas on its path that get it from us."""
        stages = self._graph.entries(flight.request.message.outputs)
        return [link for link in flight.path if link.stage in stages]

    def _open(self, flight: Flight) -> None:
        """Send a request, after its media if it has any."""
        media = flight.request.media
        if media is None:
            self._send(flight)
            return
        flight.stop_sending()
        flight.sending = asyncio.create_task(self._send_after_media(flight, media))

    async def _send_after_media(self, flight: Flight, media: MediaInput) -> None:
        """Send media as they are read and as the stages take them, and then the request."""
        try:
            for link in self._entries(flight):
                async with aclosing(media.pieces(link.record.reading)) as pieces:
                    async for piece in pieces:
                        await link.room(flight.request.id)
                        link.send_media(flight.request.id, piece)
            now = loop_time()
            if not flight.goes_again:
                flight.waited_s += now - flight.started_at
            flight.restart(now, self._graph.deadlines)
            self._send(flight)
        except ApiError as error:
            flight.fail(error)
        except Exception:
            logger.exception("the media of request %s could not be sent", flight.request.id)
            flight.fail(internal_error())

    def _send(self, flight: Flight) -> None:
        path = [link.name for link in flight.path]
        entries = self._entries(flight)
        chunk = flight.request.to_chunk(path, flight.trace.traceparent)
        flight.trace.timeline.mark(GATEWAY, "sent")
        if flight.place is not None:
            flight.place.send(loop_time(), flight.request.text is None)
        try:
            for link in entries:
                link.requests.send(chunk)
        except ChunkTooLarge as error:
            message = f"The request is too large: {error}"
            raise ApiError(413, message, code="request_too_large") from error
        except (OverflowError, UnicodeError) as error:  # JSON allows what the wire does not
            raise ApiError(400, f"The request has a value that cannot be sent: {error}") from error

    async def _send_text(self, flight: Flight, text: TextInput) -> None:
        """Send what follows the text of a request, while the stages take it."""
        entries = self._entries(flight)
        last = False
        while not last:
            await text.ready()
            for link in entries:
                await link.room(flight.request.id)
            piece, last = text.take()
            for link in entries:
                link.send_text(flight.request.id, piece, last)
        flight.restart(loop_time(), self._graph.deadlines)

    def _receive(self, link: StageLink, chunk: Chunk[OfRequest]) -> None:
        flight = self._flights.get(chunk.request_id)
        if flight is None:  # it crossed our cancel
            link.forget(chunk.request_id)
        else:
            self._intake.receive(flight, link, chunk)
