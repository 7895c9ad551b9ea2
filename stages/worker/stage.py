"""A stage, and the ends of the channels it is given."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.standstill import Standstills
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.kinds import Payload, Payloads
from omnistage.stage_configs.replicas import stage_of
from omnistage.stages.messages.edge import Edge, NothingToSay, Open, Waits
from omnistage.stages.messages.to_gateway import (
    Failed,
    InputTokens,
    Marks,
    Output,
    Queued,
    Ready,
)
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.requests.coming_media import Received
from omnistage.stages.worker.requests.room import Room
from omnistage.stages.worker.requests.watch import Watch


@dataclass(frozen=True, slots=True)
class Opened:
    """A request as a stage gets it: from the gateway, or with `Open` along an edge.

    A stage that joins gets what each of its edges brought in `opens`; the rest is the first edge's.
    """

    id: str
    message: Request | Open
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    opens: Mapping[str, "Opened"] = field(default_factory=dict)  # by source, of a stage that joins
    media: Received = field(default_factory=dict)  # what came before it

    @property
    def request(self) -> Request:
        """Returns what was asked for."""
        return self.message.request if isinstance(self.message, Open) else self.message


class Stage(Protocol):
    """Behaviour of one stage in its process; one `serve` runs per request, all at once."""

    async def start(self) -> Ready:
        """Load and serve a warm-up request; what the gateway should know comes back."""

    async def serve(self, opened: Opened) -> None:
        """Serve one request to its end; cancelled when the request is; RequestError refuses it."""

    async def alive(self) -> None:
        """Returns when the engine's own loop has answered; never, if it hangs."""

    async def close(self) -> None:
        """Give back what `start` took."""


@runtime_checkable
class ReadsFeed(Protocol):
    """A stage that reads its upstream's results itself, in its own process."""

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """A chunk of the feed or of the engine upstream; must not wait."""


@runtime_checkable
class FollowsUpstream(Protocol):
    """A stage that is told how its upstream gets on with a request."""

    def nothing_to_say(self, request_id: str, source: str) -> None:
        """Nothing will come for the request from this stage upstream."""

    def upstream_waits(self, request_id: str, source: str) -> None:
        """Extends the wait: upstream waits for its own client, so the next input is not overdue."""


@runtime_checkable
class TakesText(Protocol):
    """A stage that can begin to serve a request before the whole of its text has come."""

    def more_text(self, request_id: str, text: str, last: bool) -> None:
        """The next piece, of a request whose task has begun; must not wait."""


@runtime_checkable
class TellsProgress(Protocol):
    """A stage that says whether what it computes gets on."""

    @property
    def progress(self) -> int | None:
        """A number that grows as long as it does; None: it computes nothing."""


@runtime_checkable
class HasEngine(Protocol):
    """A stage that knows of its engine's death before all of the engine's processes have ended."""

    @property
    def is_dead(self) -> bool:
        """Returns whether it answers nothing any more."""


@runtime_checkable
class HasMetrics(Protocol):
    """A stage that measures more than every stage does."""

    @property
    def metrics(self) -> Collector:
        """Returns what it has measured; asked for once it has started, and read by another
        thread.
        """


@runtime_checkable
class TakesCommands(Protocol):
    """A stage that is controlled while it runs.

    What its `start` returns has `commands`: those that it knows, each with why it is refused as
    the stage is configured, or with nothing.
    """

    async def control(self, command: str, arguments: JsonMap) -> JsonMap:
        """Do it, and say what the gateway should know; RequestError refuses it."""


@dataclass(slots=True)
class Downstream:
    """An edge that leaves a stage: what its process sends, and the port of its engine.

    `target`: the replica that it goes to, as the paths of requests name it.
    """

    target: str
    carries: Payloads
    open: Sender
    feed: Sender
    rows: Port
    chunk_sizes: list[int]
    all_hidden_states: bool = False

    def announce(
        self,
        request_id: str,
        message: Open | NothingToSay | Waits,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Tell the stage at its end that a request comes, or what has become of it."""
        self.open.send(Chunk(request_id, message, 0, tensors or {}, last=True))

    @property
    def hidden_chunk_sizes(self) -> list[int]:
        """Hidden rows leave as the prefill makes them, or with everything else at the end."""
        return [1] if self.chunk_sizes else []


@dataclass(slots=True)
class StagePorts:
    """A stage's place in the graph.

    `name`: this replica's, as paths of requests and logs have it; `stage`: that of the stage, which
    all its replicas share. `engine`: arguments for its engine; `options`: the kind's own. `feeds`:
    ports its engine reads; `own_feed`: what the last of them reads, where the stage's process feeds
    its own engine. `upstream`: receivers its process reads, each with the stage that it is from.
    """

    name: str
    model: str
    engine: Json
    options: Json
    outputs: Sender
    downstream: list[Downstream] = field(default_factory=list)
    feeds: list[Port] = field(default_factory=list)
    own_feed: Sender | None = None
    upstream: dict[Receiver[Edge], str] = field(default_factory=dict)
    takes: Payloads = frozenset()  # what the edges to it bring
    source: str = ""  # the stage upstream, of a stage that does not join
    source_kind: str = ""  # and its kind
    deadlines: Deadlines = field(default_factory=Deadlines)
    standstills: Standstills = field(default_factory=Standstills)  # of its process
    ledger: str = ""  # the file where its engine counts what it holds
    num_lanes: int = 1  # engines that share its work
    num_chunks_out: int = 0
    marked: dict[str, set[str]] = field(default_factory=dict)  # what each request has reached
    unsent_marks: dict[str, dict[str, int]] = field(default_factory=dict)
    room: Room = field(init=False)  # to be waited for before more is made for a request

    def __post_init__(self) -> None:
        self.room = Room(self.outputs)

    @property
    def stage(self) -> str:
        """Returns what all replicas have in common, such as their seeds, goes by this name."""
        return stage_of(self.name)

    def watch(self) -> Watch:
        """Wait from now on for what a stage upstream sends of one request."""
        return Watch(self.deadlines, self.standstills)

    def live(self, request: Request, payload: Payload | None = None) -> list[Downstream]:
        """The edges that a request goes along, or those of them that carry this."""
        return [
            edge
            for edge in self.downstream
            if edge.target in request.path and (payload is None or payload in edge.carries)
        ]

    def carrying(self, payload: Payload) -> list[Downstream]:
        """The edges that carry this."""
        return [edge for edge in self.downstream if payload in edge.carries]

    def begin_marks(self, request_id: str) -> None:
        """Stamp the request's events from now on."""
        self.marked[request_id] = set()
        self.mark(request_id, "received")

    def mark(self, request_id: str, event: str, at_ns: int | None = None) -> None:
        """Stamp an event of a request, now or when it was; of one event only the first.

        It leaves beside the request's next output, with all others that have not left yet.
        """
        marked = self.marked.get(request_id)
        if marked is not None and event not in marked:
            marked.add(event)
            at_ns = time.monotonic_ns() if at_ns is None else at_ns
            self.unsent_marks.setdefault(request_id, {})[event] = at_ns

    def send_marks(self, request_id: str) -> None:
        """Send the stamps that have not left yet, if there are any."""
        events = self.unsent_marks.pop(request_id, None)
        if events:
            self._send(request_id, Marks(events))

    def end_marks(self, request_id: str) -> bool:
        """Drop what is known of a request's stamps; whether there was anything."""
        self.unsent_marks.pop(request_id, None)
        return self.marked.pop(request_id, None) is not None

    def send_output(
        self,
        request_id: str,
        output: Output,
        tensors: Mapping[str, Tensor] | None = None,
        last: bool = False,
    ) -> None:
        """Send what leaves the graph here to the gateway."""
        if last:  # nothing may follow it
            self.send_marks(request_id)
        self._send(request_id, output, tensors, last)
        if last:
            self.end_marks(request_id)
        else:
            self.send_marks(request_id)

    def send_input_tokens(self, request_id: str, num_tokens: int) -> None:
        """Say how many tokens the given text has."""
        self._send(request_id, InputTokens(num_tokens))

    def send_queued(self, request_id: str) -> None:
        """Have the gateway wait on: the request has its whole time once others have ended."""
        self._send(request_id, Queued())
        self.send_marks(request_id)

    def send_failure(self, request_id: str, failed: Failed) -> None:
        """End the request with an error."""
        self.send_marks(request_id)
        self._send(request_id, failed, last=True)
        self.end_marks(request_id)

    def _send(
        self,
        request_id: str,
        message: Output | InputTokens | Failed | Marks | Queued,
        tensors: Mapping[str, Tensor] | None = None,
        last: bool = False,
    ) -> None:
        self.num_chunks_out += 1
        self.outputs.send(Chunk(request_id, message, 0, tensors or {}, last))
