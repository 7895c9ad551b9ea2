"""Takes what stages send for requests, and gives it out as outputs, each in time."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.errors import ApiError
from omnistage.server.common.trace import FINISHED
from omnistage.server.runtime.first_sound import SpokenPlaces
from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.flight import Flight, Item
from omnistage.server.runtime.inputs import late_text
from omnistage.server.runtime.request import InputTokensOutput, Output, output_of
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stages.messages.to_gateway import (
    Failed,
    InputTokens,
    Marks,
    OfRequest,
    Queued,
    Step,
    output_name,
)

logger = logging.getLogger(__name__)


class Intake:
    """Takes chunks of requests, gives their outputs out, and fails what is overdue."""

    def __init__(self, fleet: Fleet, spoken: SpokenPlaces | None) -> None:
        self._fleet = fleet
        self._graph = fleet.graph
        self._waits_for = {output: self._graph.waits_for(output) for output in self._graph.outputs}
        self._spoken = spoken

    def receive(self, flight: Flight, link: StageLink, chunk: Chunk[OfRequest]) -> None:
        """Queue what a stage has sent for a request; what is no output is noted here."""
        message = chunk.message
        if isinstance(message, Marks):
            link.grant(chunk.request_id)
            for event, at_ns in message.events.items():
                flight.trace.timeline.mark(link.name, event, at_ns)
        elif isinstance(message, Queued):
            link.grant(chunk.request_id)
            flight.postpone(loop_time(), self._graph.deadlines)
        elif isinstance(message, Step) and link.stage != self._graph.outputs.get(message.output):
            # A stage before it gets on: nothing of the output itself has come.
            flight.postpone(loop_time(), self._graph.deadlines)
            flight.queue.put_nowait((link, chunk))
        else:
            flight.has_heard = True
            if chunk.last:
                flight.trace.timeline.mark(link.name, FINISHED)
            if not isinstance(message, Failed | InputTokens):
                is_end = chunk.last and not chunk.tensors
                self._postpone(flight, output_name(message), is_end)
                self._note_packet(flight, link, chunk)
            flight.queue.put_nowait((link, chunk))

    def _note_packet(self, flight: Flight, link: StageLink, chunk: Chunk[OfRequest]) -> None:
        now = loop_time()
        flight.note_packet(link, chunk, now)
        if self._spoken is not None and flight.place is not None and flight.pace.length_s:
            self._spoken.hear(flight.place, now)

    def _postpone(self, flight: Flight, name: str, is_end: bool) -> None:
        """An output has come, or no more than its end: when the next chunks must be here.

        Those that have not begun and wait for it have their time from now on.
        """
        if name in flight.unfinished:
            now, deadlines = loop_time(), self._graph.deadlines
            flight.deadlines[name] = now + deadlines.next_chunk_s
            if not is_end:
                flight.first_at.setdefault(name, now)
            for other in flight.unfinished:
                if other not in flight.first_at and name in self._waits_for[other]:
                    flight.deadlines[other] = now + deadlines.first_chunk_s

    async def outputs(self, flight: Flight) -> AsyncGenerator[Output, None]:
        """Yield the outputs as they come; ApiError for a failure of a stage, and if one is late."""
        while flight.unfinished:
            item = await self._next(flight)
            if isinstance(item, ApiError):
                raise item
            link, chunk = item
            link.grant(flight.request.id)
            message = chunk.message
            if isinstance(message, Failed):
                raise ApiError.from_stage(message)
            if isinstance(message, InputTokens):
                flight.num_tokens_in += message.num_tokens
                yield InputTokensOutput(message.num_tokens)
                continue
            assert not isinstance(message, Marks | Queued), "noted when they come"
            name = output_name(message)
            if name in flight.unfinished:
                if chunk.last:
                    flight.unfinished.remove(name)
                if chunk.last or chunk.tensors:
                    flight.count(link, chunk)
                given_at = loop_time()
                yield output_of(link, message, chunk.tensors, chunk.last)
                flight.extend(loop_time() - given_at)  # meanwhile we were not asked for more

    async def _next(self, flight: Flight) -> Item | ApiError:
        """The next item; ApiError once an output is overdue, or before that the text."""
        while flight.queue.empty():
            kind = flight.next_due
            flight.patience = asyncio.timeout_at(flight.due_at)
            try:
                async with flight.patience:
                    return await flight.queue.get()
            except TimeoutError:
                due_at = flight.due_at
                if due_at is None or due_at > loop_time():
                    continue
                if flight.waits_for_text:
                    raise late_text() from None
                raise self._overdue(flight, kind) from None
            finally:
                flight.patience = None
        return flight.queue.get_nowait()

    def _overdue(self, flight: Flight, kind: str) -> ApiError:
        stage = next(one for one in flight.path if one.stage == self._graph.outputs[kind]).name
        deadlines = self._graph.deadlines
        is_first = kind not in flight.first_at
        limit_s = deadlines.first_chunk_s if is_first else deadlines.next_chunk_s
        self._fleet.note_overdue(flight.path, limit_s)
        logger.error("stage %s: no %s in time", stage, kind)
        return ApiError(504, f"Stage {stage} sent no {kind} in time.", code="stage_timeout")


def loop_time() -> float:
    """Return the time of the event loop, in which deadlines are."""
    return asyncio.get_running_loop().time()
