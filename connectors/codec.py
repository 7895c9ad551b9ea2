"""Chunks as bytes: a msgpack header, and a body of each tensor's bytes.

In a body each tensor starts at a multiple of ALIGNMENT, and so does the body in memory: what reads
it may use any vector instruction.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor

Header = tuple[str, str, int, bool, dict[str, Any], list[tuple[str, str, list[int], int]]]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


class Record(msgspec.Struct, frozen=True):
    """A chunk ready to be written: the header, the tensors' buffers, and what these take."""

    header: bytes
    buffers: Sequence[Any]
    body_bytes: int
    is_last: bool


def aligned(num_bytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def empty(num_bytes: int) -> memoryview:
    """Memory that starts at a multiple of ALIGNMENT, with whatever is in it."""
    if num_bytes == 0:
        return memoryview(bytearray())
    array = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -array.__array_interface__["data"][0] % ALIGNMENT
    return array.data[start : start + num_bytes]


def encode(chunk: Chunk) -> Record:
    """Describe the chunk; the tensors' memory is shared."""
    tensors = [
        (name, tensor.dtype, tensor.shape, tensor.num_bytes)
        for name, tensor in chunk.tensors.items()
    ]
    body_bytes = sum(aligned(num_bytes) for *_, num_bytes in tensors)
    described = (chunk.request_id, chunk.kind, chunk.index, chunk.last, chunk.meta, tensors)
    header = _encoder.encode(described)
    buffers = [tensor.data for tensor in chunk.tensors.values()]
    return Record(header, buffers, body_bytes, chunk.last)


def decode(header: Any, body: Any) -> Chunk:
    """The chunk whose tensors share the memory of `body`."""
    request_id, kind, index, last, meta, described = _decoder.decode(header)
    tensors = {}
    start = 0
    for name, dtype, shape, num_bytes in described:
        tensors[name] = Tensor(dtype, tuple(shape), body[start : start + num_bytes])
        start += aligned(num_bytes)
    return Chunk(request_id, kind, index, tensors, meta, last)
