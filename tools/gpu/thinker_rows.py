"""The rows that a thinker exports along an edge, heard in this process."""

import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.messages.edge import EDGE, Edge
from omnistage.stages.worker.ports import Port

CHANNEL, TARGET = "error.rows", "error"
PATIENCE_S = 60.0


@dataclass
class Rows:
    """The rows of the edge: each request's by position, and who has had all."""

    values: dict[str, dict[int, torch.Tensor]] = field(default_factory=lambda: defaultdict(dict))
    complete: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, chunk: Chunk[Edge]) -> None:
        """From the thread that reads the edge."""
        with self.changed:
            if "hidden" in chunk.tensors:
                positions = chunk.tensors["positions"].numpy().tolist()
                rows = values_of(chunk.tensors["hidden"])
                self.values[chunk.request_id] |= dict(zip(positions, rows, strict=True))
            if chunk.last:
                self.complete.add(chunk.request_id)
                self.changed.notify()

    def of(self, name: str) -> torch.Tensor:
        """Float32 [positions, hidden], once all have come; raises TimeoutError."""
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.complete, PATIENCE_S):
                raise TimeoutError(f"the rows of {name} did not come")
            rows = self.values[name]
        return torch.stack([rows[position] for position in sorted(rows)])


def values_of(tensor: Tensor) -> torch.Tensor:
    """A float32 copy."""
    flat = torch.frombuffer(bytearray(tensor.data), dtype=dtype_of(tensor.dtype))
    return flat.view(tensor.shape).float()


@contextmanager
def edge() -> Iterator[tuple[Port, Rows]]:
    """An edge from the engine, and what has come along it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        connector = make_connector("shm", Path(directory), {})
        connector.create(CHANNEL)
        receiver = connector.receiver(CHANNEL, EDGE)
        rows, is_done = Rows(), threading.Event()

        def drain() -> None:
            while not is_done.is_set():
                if receiver.wait(0.1):
                    while (chunk := receiver.receive()) is not None:
                        rows.take(chunk)
                        receiver.grant(chunk.request_id)

        draining = threading.Thread(target=drain)
        draining.start()
        try:
            yield Port(CHANNEL, "shm", directory, {}), rows
        finally:
            is_done.set()
            draining.join()
            receiver.close()
