"""Publishing what a step computed, off the engine's thread: codec frames and hidden rows."""

import logging
import os
import queue
import select
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import ChunkTooLarge, ConnectorError, Sender
from omnistage.stages.messages.edge import Codes, Rows
from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.gathering import Frames, Gathering, Lines, Longs
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.rows.row_index import Places
from omnistage.stages.vllm.step.step import Finished, Ints, Replay, StartedRequest
from omnistage.stages.vllm.step.step_schema import Export, are_frames
from omnistage.stages.worker.ledger import Held, Ledger

logger = logging.getLogger(__name__)

WHOLE = 1 << 62  # more lines than any request has
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True, slots=True)
class Exported:
    """One step's results on the host; `ready` is awaited before `values` is read.

    `rows`, `positions` int32 [n]: the request row and absolute index (codec frame, or prompt and
    token position) of each line of `values` [n, …]. `places`: where it is kept too, if it is not
    -1. `replays` are rows that were kept and leave before these. The last `num_held` lines wait;
    `accepted` says by their index which of those that waited leave, before all else. The others
    never do.
    """

    rows: Ints
    positions: Ints
    values: torch.Tensor | None
    ready: torch.cuda.Event | None
    started: Sequence[StartedRequest] = field(default_factory=tuple)
    finished: Sequence[Finished] = field(default_factory=tuple)
    places: Places | None = None
    replays: Sequence[Replay] = field(default_factory=tuple)
    num_held: int = 0
    accepted: Longs | None = None


class _Stream:
    """One request's way downstream."""

    def __init__(self, request_id: str, message: Codes | Rows) -> None:
        self.request_id = request_id
        self.message = message
        self.num_sent = 0


class _Edge:
    """One edge: what waits for it of each request, and the sizes of its chunks."""

    def __init__(
        self, sender: Sender, export: Export, chunk_sizes: Sequence[int], num_rows: int
    ) -> None:
        self.sender = sender
        self._export = export
        self._sizes = list(chunk_sizes) or [WHOLE]
        self._streams: dict[int, _Stream] = {}
        is_frames = export.each == "frame"
        self._waiting: Gathering = Frames(num_rows) if is_frames else Lines(num_rows)
        self._due_at = np.zeros(num_rows + 1, np.int64)  # lines of the next chunk; 0: no stream

    @property
    def num_streams(self) -> int:
        """Requests that go along it."""
        return len(self._streams)

    def open(self, row: int, request_id: str, rows: Rows) -> None:
        """Begin a request; `rows` goes with its chunks, if they are rows."""
        message = Codes() if self._export.each == "frame" else rows
        self._streams[row] = _Stream(request_id, message)
        self._waiting.open(row)
        self._due_at[row] = self._sizes[0]

    def is_blocked(self, row: int) -> bool:
        """Returns whether a request that goes along it finds no credit."""
        stream = self._streams.get(row)
        return stream is not None and self.sender.credit(stream.request_id) <= 0

    def finish(self, row: int) -> None:
        """Send what waits of a request as its last chunk."""
        if row in self._streams:
            self._send(row, last=True)
            self._due_at[row] = 0
            del self._streams[row]

    def gather(self, rows: Ints, positions: Ints, values: torch.Tensor) -> list[int]:
        """Take a step's lines, and send the chunks that they fill; the rows that sent one."""
        is_streamed = self._due_at[rows] > 0
        if self._export.each == "frame":
            is_streamed &= are_frames(values).numpy()
        if not is_streamed.all():
            rows, positions = rows[is_streamed], positions[is_streamed]
            values = values[torch.from_numpy(is_streamed)]
        if len(rows) == 0:
            return []
        rows, num_waiting = self._waiting.add(rows, positions, values)
        full: list[int] = rows[num_waiting >= self._due_at[rows]].tolist()
        for row in full:
            self._send(row, last=False)
        return full

    def _send(self, row: int, last: bool) -> None:
        stream = self._streams[row]
        positions, values = self._waiting.drain(row)
        stream.num_sent += 1
        self._due_at[row] = self._sizes[min(stream.num_sent, len(self._sizes) - 1)]
        try:
            self._put(stream, positions, values, last)
        except ConnectorError as error:
            logger.error("results of %s could not be sent: %s", stream.request_id, error)

    def _put(self, stream: _Stream, positions: Ints, values: torch.Tensor, last: bool) -> None:
        """Send lines as one chunk, or as several where one would not fit the channel."""
        index = 0
        tensors = {}
        if len(positions):
            index = int(positions[0])
            name = self._export.name
            tensors = {name: to_tensor(values), "positions": Tensor.from_numpy(positions)}
        try:
            self.sender.send(Chunk(stream.request_id, stream.message, index, tensors, last))
        except ChunkTooLarge:
            if len(positions) < 2:
                raise
            half = len(positions) // 2
            self._put(stream, positions[:half], values[:half], False)
            self._put(stream, positions[half:], values[half:], last)


class Exporter:
    """A thread that takes steps from the worker half and sends chunks along each edge.

    `edges`: by the stage that one goes to, its sender and the sizes of its chunks. `blocked`: where
    it says which rows find no credit. `cached`: the rows that it keeps.
    """

    def __init__(
        self,
        edges: Mapping[str, tuple[Sender, Sequence[int]]],
        export: Export,
        num_rows: int,
        ledger: Ledger | None = None,
        blocked: BlockedRows | None = None,
        cached: CachedRows | None = None,
    ) -> None:
        self._ledger = ledger
        self._cached = cached
        self._blocked = blocked
        self._waiting: set[int] = set()  # the rows that are blocked
        self._noting = threading.Lock()
        if blocked is not None:
            blocked.clear()  # the generation before us may have died with some
        self._edges = {
            target: _Edge(sender, export, sizes, num_rows)
            for target, (sender, sizes) in edges.items()
        }
        self._held: tuple[Ints, Ints, torch.Tensor] | None = None  # rows of drafts
        self._steps: queue.SimpleQueue[Exported | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omnistage-export", daemon=True)
        self._closing = os.eventfd(0)
        self._flusher = threading.Thread(target=self._flush, name="omnistage-flush", daemon=True)
        self._thread.start()
        self._flusher.start()

    def put(self, exported: Exported) -> None:
        """Hand over a step; never waits."""
        self._steps.put(exported)

    def close(self) -> None:
        """Send what is left and stop."""
        self._steps.put(None)
        self._thread.join(timeout=5)
        os.eventfd_write(self._closing, 1)
        self._flusher.join(timeout=5)
        os.close(self._closing)
        for edge in self._edges.values():
            edge.sender.close()

    def _flush(self) -> None:
        senders = {edge.sender.fileno(): edge.sender for edge in self._edges.values()}
        poller = select.poll()
        for file in senders:
            poller.register(file, select.POLLIN)
        poller.register(self._closing, select.POLLIN)
        while True:
            for file, _ in poller.poll():
                if file == self._closing:
                    return
                senders[file].flush()
                self._note([])
                self._count()

    def _note(self, rows: Iterable[int]) -> None:
        """Say whether these rows, or those that were, are blocked at an edge.

        Credit that comes back after we have asked for it wakes the flusher, which asks again.
        """
        if self._blocked is None:
            return
        with self._noting:
            for row in self._waiting.union(rows):
                is_blocked = any(edge.is_blocked(row) for edge in self._edges.values())
                self._blocked[row] = is_blocked
                (self._waiting.add if is_blocked else self._waiting.discard)(row)

    def _count(self) -> None:
        if self._ledger is not None:
            edges = self._edges.values()
            self._ledger.write(Held.STREAMS, sum(edge.num_streams for edge in edges))
            self._ledger.write(Held.CREDITS, sum(edge.sender.num_requests for edge in edges))

    def _run(self) -> None:
        while (exported := self._steps.get()) is not None:
            if exported.ready is not None:
                exported.ready.synchronize()
            moved = [] if exported.accepted is None else self._accept(exported.accepted)
            for done in exported.finished:
                for edge in self._edges.values():
                    edge.finish(done.row)
            for new in exported.started:
                self._open(new)
            moved += [done.row for done in exported.finished]
            moved += [new.row for new in exported.started]
            for replay in exported.replays:
                moved += self._replay(replay)
            if exported.values is not None:
                moved += self._gather_step(exported, exported.values)
            self._note(moved)
            if exported.started or exported.finished:
                self._count()

    def _gather_step(self, exported: Exported, values: torch.Tensor) -> list[int]:
        """Returns what a step computed, but for the rows of drafts, which wait."""
        rows, positions = exported.rows, exported.positions
        if self._cached is not None and exported.places is not None:
            self._cached.keep(exported.places, values)
        if exported.num_held:
            num = len(rows) - exported.num_held
            self._held = rows[num:], positions[num:], values[num:]
            rows, positions, values = rows[:num], positions[:num], values[:num]
        return self._gather(rows, positions, values)

    def _accept(self, accepted: Longs) -> list[int]:
        """Returns the rows of drafts that were accepted."""
        assert self._held is not None
        (rows, positions, values), self._held = self._held, None
        return self._gather(rows[accepted], positions[accepted], values[torch.from_numpy(accepted)])

    def _replay(self, replay: Replay) -> list[int]:
        assert self._cached is not None
        rows = np.full(len(replay.positions), replay.row, np.int32)
        return self._gather(rows, replay.positions, self._cached.take(replay.places))

    def _gather(self, rows: Ints, positions: Ints, values: torch.Tensor) -> list[int]:
        """Along every edge; the rows that sent a chunk."""
        edges = self._edges.values()
        return [row for edge in edges for row in edge.gather(rows, positions, values)]

    def _open(self, new: StartedRequest) -> None:
        """Along the edges that its options name `to`, or all."""
        options = new.options
        if options is None:
            return
        for target, edge in self._edges.items():
            if options.to is None or target in options.to:
                edge.open(new.row, options.id, options.rows)


def to_tensor(values: torch.Tensor) -> Tensor:
    """A host tensor as it travels; bfloat16 by its bytes."""
    values = values.contiguous()
    if values.dtype in DTYPES:
        data = values.view(torch.uint8).numpy()
        return Tensor(DTYPES[values.dtype], tuple(values.shape), data.data.cast("B"))
    return Tensor.from_numpy(values.numpy())
