"""Both ends of a channel of each connector."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.channels.notes import Note

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.receiver import RingReceiver
from omnistage.connectors.sender import RingSender

NAMES = ("shm", "inprocess", "tcp")
Folder = Callable[[str], Path]
Ends = tuple[RingSender, RingReceiver[Note]]


def chunk(request_id: str = "a", index: int = 0, size: int = 8, last: bool = False) -> Chunk[Note]:
    values = np.full(size, index % 251, np.uint8)
    return Chunk(request_id, Note(), index, {"v": Tensor.from_numpy(values)}, last)
