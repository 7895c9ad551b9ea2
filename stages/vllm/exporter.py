"""Publishing what a step computed, off the engine's thread: codec frames and hidden rows."""

import logging
import queue
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import ConnectorError, Sender
from omnistage.stages.messages.edge import Codes, Rows
from omnistage.stages.vllm.gathering import Frames, Gathering, Lines
from omnistage.stages.vllm.ports import BlockedQuery
from omnistage.stages.vllm.step import Finished, Ints, Started
from omnistage.stages.vllm.step_schema import Export
from omnistage.stages.worker.ledger import Held, Ledger

logger = logging.getLogger(__name__)

WHOLE = 1 << 62  # more lines than any request has
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True, slots=True)
class Exported:
    """One step's results on the host; `ready` is awaited before `values` is read.

    `rows`, `positions` int32 [n]: the request row and absolute index (codec frame, or prompt and
    token position) of each line of `values` [n, …].
    """

    rows: Ints
    positions: Ints
    values: torch.Tensor | None
    ready: torch.cuda.Event | None
    started: Sequence[Started] = field(default_factory=tuple)
    finished: Sequence[Finished] = field(default_factory=tuple)


class _Stream:
    """One request's way downstream."""

    def __init__(self, request_id: str, message: Codes | Rows) -> None:
        self.request_id = request_id
        self.message = message
        self.num_sent = 0


class Exporter(BlockedQuery):
    """A thread that takes steps from the worker half and sends chunks downstream."""

    def __init__(
        self,
        sender: Sender,
        export: Export,
        chunk_sizes: Sequence[int],
        num_rows: int,
        ledger: Ledger | None = None,
    ) -> None:
        self._sender = sender
        self._ledger = ledger
        self._export = export
        self._sizes = list(chunk_sizes) or [WHOLE]
        self._streams: dict[int, _Stream] = {}
        is_frames = export.each == "frame"
        self._waiting: Gathering = Frames(num_rows) if is_frames else Lines(num_rows)
        self._due_at = np.zeros(num_rows + 1, np.int64)  # lines of the next chunk; 0: no stream
        self._steps: queue.SimpleQueue[Exported | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omnistage-export", daemon=True)
        self._closing = threading.Event()
        self._flusher = threading.Thread(target=self._flush, name="omnistage-flush", daemon=True)
        self._thread.start()
        self._flusher.start()

    def put(self, exported: Exported) -> None:
        """Hand over a step; never waits."""
        self._steps.put(exported)

    def is_blocked(self, request_id: str) -> bool:
        """Whether the request's chunks find no credit downstream."""
        return self._sender.credit(request_id) <= 0

    def close(self) -> None:
        """Send what is left and stop."""
        self._steps.put(None)
        self._thread.join(timeout=5)
        self._closing.set()
        self._flusher.join(timeout=5)
        self._sender.close()

    def _flush(self) -> None:
        poller = select.poll()
        poller.register(self._sender.fileno(), select.POLLIN)
        while not self._closing.is_set():
            if poller.poll(500):
                self._sender.flush()
                self._count()

    def _count(self) -> None:
        if self._ledger is not None:
            self._ledger.write(Held.STREAMS, len(self._streams))
            self._ledger.write(Held.CREDITS, self._sender.num_requests)

    def _run(self) -> None:
        while (exported := self._steps.get()) is not None:
            if exported.ready is not None:
                exported.ready.synchronize()
            for done in exported.finished:
                if done.row in self._streams:
                    self._send(done.row, last=True)
                    self._due_at[done.row] = 0
                    del self._streams[done.row]
            for new in exported.started:
                request_id = new.options.get("id")
                if isinstance(request_id, str) and new.options.get("export", True):
                    self._open(new.row, request_id, new.options.get("rows"))
            if exported.values is not None:
                self._gather(exported.rows, exported.positions, exported.values)
            if exported.started or exported.finished:
                self._count()

    def _open(self, row: int, request_id: str, rows: object) -> None:
        """`rows`: the fields of `Rows`, if they are not its defaults."""
        message = Codes() if self._export.each == "frame" else msgspec.convert(rows or {}, Rows)
        self._streams[row] = _Stream(request_id, message)
        self._waiting.open(row)
        self._due_at[row] = self._sizes[0]

    def _gather(self, rows: Ints, positions: Ints, values: torch.Tensor) -> None:
        is_streamed = self._due_at[rows] > 0
        if not is_streamed.all():
            rows, positions = rows[is_streamed], positions[is_streamed]
            values = values[torch.from_numpy(is_streamed)]
        if len(rows) == 0:
            return
        rows, num_waiting = self._waiting.add(rows, positions, values)
        for row in rows[num_waiting >= self._due_at[rows]].tolist():
            self._send(row, last=False)

    def _send(self, row: int, last: bool) -> None:
        stream = self._streams[row]
        positions, values = self._waiting.drain(row)
        index = 0
        tensors = {}
        if len(positions):
            index = int(positions[0])
            name = self._export.name
            tensors = {name: to_tensor(values), "positions": Tensor.from_numpy(positions)}
        chunk = Chunk(stream.request_id, stream.message, index, tensors, last)
        stream.num_sent += 1
        self._due_at[row] = self._sizes[min(stream.num_sent, len(self._sizes) - 1)]
        try:
            self._sender.send(chunk)
        except ConnectorError as error:
            logger.error("results of %s could not be sent: %s", stream.request_id, error)


def to_tensor(values: torch.Tensor) -> Tensor:
    """A host tensor as it travels; bfloat16 by its bytes."""
    values = values.contiguous()
    if values.dtype in DTYPES:
        data = values.view(torch.uint8).numpy()
        return Tensor(DTYPES[values.dtype], tuple(values.shape), data.data.cast("B"))
    return Tensor.from_numpy(values.numpy())
