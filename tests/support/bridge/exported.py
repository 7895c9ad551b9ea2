"""Chunks that an exporter sends."""

from typing import Any

import numpy as np
from support.channels.pipe_sender import PipeSender

from omnistage.connectors.chunk import Chunk
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.vllm.step.step import Ints, StartedRequest

NUM_CODES = 3


class Sent(PipeSender):
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[Chunk] = []

    def send(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def of(chunks: list[Chunk], request_id: str) -> list[tuple[int, list[int], bool]]:
    """Of one request: first frame, its frames by their first code, whether it is the last."""
    return [
        (
            chunk.index,
            chunk.tensors["codes"].numpy()[:, 0].tolist() if chunk.tensors else [],
            chunk.last,
        )
        for chunk in chunks
        if chunk.request_id == request_id
    ]


def started(row: int, name: str, **options: Any) -> StartedRequest:
    return StartedRequest(row, name, RequestOptions(name, **options))
