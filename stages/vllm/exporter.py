"""Publishing what a step computed, off the engine's thread: codec frames and hidden rows."""

import logging
import queue
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import ConnectorError, Sender
from omnistage.stages.vllm.ledger import Held, Ledger
from omnistage.stages.vllm.ports import BlockedQuery
from omnistage.stages.vllm.step import Finished, Ints, Started

logger = logging.getLogger(__name__)

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
    """One request's results, gathered to chunks of the edge's sizes."""

    def __init__(self, request_id: str, meta: Mapping[str, Any]) -> None:
        self.request_id = request_id
        self.meta = meta
        self.parts: list[tuple[Exported, torch.Tensor, int, int]] = []  # lines of steps
        self.num_waiting = 0
        self.num_sent = 0

    def take(self) -> tuple[Ints, torch.Tensor]:
        """Positions and values of all that waits; it waits no longer."""
        positions = [step.positions[start:end] for step, _, start, end in self.parts]
        values = [values[start:end] for _, values, start, end in self.parts]
        self.parts, self.num_waiting = [], 0
        return np.concatenate(positions), torch.cat(values)


class Exporter(BlockedQuery):
    """A thread that takes steps from the worker half and sends chunks downstream."""

    def __init__(
        self, sender: Sender, kind: str, chunk_sizes: Sequence[int], ledger: Ledger | None = None
    ) -> None:
        self._sender = sender
        self._ledger = ledger
        self._kind = kind
        self._sizes = list(chunk_sizes)
        self._streams: dict[int, _Stream] = {}
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
                stream = self._streams.pop(done.row, None)
                if stream is not None:
                    self._send(stream, last=True)
            for new in exported.started:
                request_id = new.options.get("id")
                if isinstance(request_id, str) and new.options.get("export", True):
                    meta = new.options.get("meta")
                    self._streams[new.row] = _Stream(
                        request_id, meta if isinstance(meta, Mapping) else {}
                    )
            if exported.values is not None:
                self._gather(exported, exported.values)
            if exported.started or exported.finished:
                self._count()

    def _gather(self, exported: Exported, values: torch.Tensor) -> None:
        edges = np.flatnonzero(np.diff(exported.rows, prepend=-1))
        rows, starts = exported.rows[edges].tolist(), edges.tolist()
        for row, start, end in zip(rows, starts, [*starts[1:], len(exported.rows)], strict=True):
            stream = self._streams.get(row)
            if stream is None:
                continue
            stream.parts.append((exported, values, start, end))
            stream.num_waiting += end - start
            if self._sizes and stream.num_waiting >= self._target(stream):
                self._send(stream, last=False)

    def _target(self, stream: _Stream) -> int:
        return self._sizes[min(stream.num_sent, len(self._sizes) - 1)]

    def _send(self, stream: _Stream, last: bool) -> None:
        tensors = {}
        index = 0
        if stream.parts:
            positions, values = stream.take()
            index = int(positions[0])
            tensors = {self._kind: to_tensor(values), "positions": Tensor.from_numpy(positions)}
        chunk = Chunk(stream.request_id, self._kind, index, tensors, stream.meta, last)
        stream.num_sent += 1
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
