"""One request in the graph, what went in and came out; and its place in the server."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.errors import ApiError
from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import AGAIN, Trace, current_trace
from omnistage.server.runtime.audio_pace import AudioPace
from omnistage.server.runtime.first_sound import SpokenPlace
from omnistage.server.runtime.request import GraphRequest, Output
from omnistage.server.runtime.samples import sample_format_of
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.messages.to_gateway import (
    Embedding,
    ImagePixels,
    OfRequest,
    Sound,
    TextDelta,
    TranscriptDelta,
)

Item = tuple[StageLink, Chunk[OfRequest]]


@dataclass(slots=True)
class Flight:
    """One request between its first chunk and its last.

    The queue needs no bound of its own: every stage stops at its credit, which returns as the
    client takes.
    """

    request: GraphRequest
    path: Sequence[StageLink]
    started_at: float
    unfinished: list[str]  # outputs whose last chunk has not been taken from the queue
    deadlines: dict[str, float]  # of each output: when its next chunk must be here
    queue: asyncio.Queue[Item | ApiError] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    first_at: dict[str, float] = field(default_factory=dict)  # of each output that has come
    is_cancelled: bool = False  # it ended with unfinished outputs: its stages were told to stop
    failure: Exception | None = None
    goes_on: bool = False  # with an answer that another request began: nobody waits for its start
    is_sent: bool = False  # with its media, and its text to the end if that comes in pieces
    sending: asyncio.Task[None] | None = None  # of its media and then of itself
    patience: asyncio.Timeout | None = None  # while its next output is waited for
    has_heard: bool = False  # something of it has come
    goes_again: bool = False  # a replica of its first path ended
    trace: Trace = field(default_factory=current_trace)  # of the request that runs it
    waited_s: float = 0.0  # from its admission until it was sent: its media were loaded
    pace: AudioPace = field(default_factory=AudioPace)
    place: SpokenPlace | None = None  # if its first sound is limited, and measured
    num_tokens_in: int = 0
    num_tokens_out: int = 0
    audio_s: float = 0.0
    num_images: int = 0

    def needs(self, links: Collection[StageLink]) -> bool:
        """Returns whether one of these replicas is on its way."""
        return any(link in links for link in self.path)

    @property
    def may_go_again(self) -> bool:
        """Returns whether it can be sent once more: nobody has had anything of it, nor of its
        text.
        """
        return not (self.has_heard or self.goes_again or self.request.text is not None)

    def go_again(self, path: Sequence[StageLink], due_at: float) -> None:
        """It begins anew on another path, under another name."""
        self.goes_again = True
        self.is_sent = False
        self.request = replace(self.request, id=f"{self.request.id}{AGAIN}")
        self.path = path
        self.deadlines = dict.fromkeys(self.deadlines, due_at)
        self._extend_patience()

    @property
    def waits_for_text(self) -> bool:
        """Returns whether more of its text may come: what its stages send is late and not
        overdue.
        """
        return self.request.text is not None and not self.is_sent

    @property
    def due_at(self) -> float | None:
        """When it fails for what has not come: of its text, or of its outputs.

        None while its media are read: that takes as long as its client waits.
        """
        if self.request.media is not None and not self.is_sent:
            return None
        if self.request.text is not None and not self.is_sent:
            return self.request.text.due_at
        return self.deadlines[self.next_due]

    def restart(self, now: float, deadlines: Deadlines) -> None:
        """All of it was sent: each unfinished output has its time from now on."""
        self.is_sent = True
        self.postpone(now, deadlines)

    def postpone(self, now: float, deadlines: Deadlines) -> None:
        """Give each unfinished output its time from now on."""
        for kind in self.unfinished:
            is_first = kind not in self.first_at
            limit_s = deadlines.first_chunk_s if is_first else deadlines.next_chunk_s
            self.deadlines[kind] = max(self.deadlines[kind], now + limit_s)
        self._extend_patience()

    def _extend_patience(self) -> None:
        if self.patience is not None and self.unfinished and not self.patience.expired():
            self.patience.reschedule(self.due_at)

    def extend(self, seconds: float) -> None:
        """Put the deadline of each unfinished output off."""
        for kind in self.unfinished:
            self.deadlines[kind] += seconds
        self._extend_patience()

    @property
    def next_due(self) -> str:
        """The unfinished output with the earliest deadline."""
        return min(self.unfinished, key=self.deadlines.__getitem__)

    def end(self) -> None:
        """Nothing more is given out for it."""
        self.stop_sending()
        self.is_cancelled = bool(self.unfinished)
        self.ended.set()
        self.trace.num_tokens_in += self.num_tokens_in
        self.trace.num_tokens_out += self.num_tokens_out
        self.trace.audio_s += self.audio_s
        self.trace.num_images += self.num_images

    def stop_sending(self) -> None:
        """Send nothing more of its media."""
        if self.sending is not None:
            self.sending.cancel()

    def fail(self, error: ApiError) -> None:
        """End the request with an error, ahead of what has not been taken yet."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(error)

    def note_packet(self, link: StageLink, chunk: Chunk[OfRequest], now: float) -> None:
        """Note when audio came, if this is some; of an unknown rate it fails once it is taken."""
        pcm = chunk.tensors.get("pcm")
        if pcm is not None and link.record.sample_rate_hz is not None and len(pcm.data):
            self.pace.packet(now, sample_format_of(link, pcm).seconds(len(pcm.data)))

    def count(self, link: StageLink, chunk: Chunk[OfRequest]) -> None:
        """Add what an output's chunk from a stage brings; tokens come with the last one."""
        message = chunk.message
        if isinstance(message, TextDelta | TranscriptDelta) and chunk.last:
            usage = message.chunk.get("usage") or {}
            self.num_tokens_in += usage.get("prompt_tokens") or 0
            self.num_tokens_out += usage.get("completion_tokens") or 0
        elif isinstance(message, Embedding):
            self.num_tokens_in += message.num_tokens
        elif isinstance(message, Sound) and "pcm" in chunk.tensors:
            pcm = chunk.tensors["pcm"]
            self.audio_s += sample_format_of(link, pcm).seconds(len(pcm.data))
        elif isinstance(message, ImagePixels) and not message.is_preview:
            self.num_images += 1
            if chunk.last:
                self.num_tokens_in += message.text_tokens

    @property
    def outcome(self) -> Outcome:
        """How it ended, once it has."""
        if self.failure is None:
            return Outcome.CANCELLED if self.is_cancelled else Outcome.FINISHED
        is_refusal = isinstance(self.failure, ApiError) and self.failure.status < 500
        return Outcome.REFUSED if is_refusal else Outcome.FAILED


class Ticket:
    """Held from a request's admission to the end of its answer: a context that gives it back.

    Between the two the request's media are loaded, it runs in the graph, and its client reads.
    """

    def __init__(
        self,
        run: Callable[[GraphRequest, "Ticket"], AsyncGenerator[Output, None]],
        give_back: Callable[["Ticket"], None],
        admitted_at: float,
        place: SpokenPlace | None = None,
    ) -> None:
        self._run = run
        self._give_back = give_back
        self.admitted_at = admitted_at
        self.place = place  # among spoken answers, if they are limited
        self._is_held = True
        self.flights: list[Flight] = []  # what of it is in the graph, or was

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_held = False
        self._give_back(self)

    def run(self, request: GraphRequest) -> AsyncGenerator[Output, None]:
        """Send the request now; its outputs as they come.

        Closing them early cancels the request, and giving the place back does before any of them
        was asked for. One that is run after another goes on with the same answer, and needs no
        place of its own. Raises ApiError if a stage on its way has ended or been closed since the
        admission.
        """
        assert self._is_held, "the place was given back before the request ran"
        return self._run(request, self)

    @property
    def has_output(self) -> bool:
        """Returns whether some output of its request has come."""
        return any(flight.first_at for flight in self.flights)
