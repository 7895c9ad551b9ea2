"""Chunks as bytes: a msgpack header, then each tensor's bytes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnistage.connectors.chunk import Chunk, Tensor

Header = tuple[str, str, int, bool, dict[str, Any], list[tuple[str, str, list[int], int]]]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


class Record(msgspec.Struct, frozen=True):
    """A chunk ready to be written: the header, and the tensors' buffers that follow it."""

    header: bytes
    buffers: Sequence[Any]
    num_bytes: int
    is_last: bool


def encode(chunk: Chunk) -> Record:
    """Describe the chunk; the tensors' memory is shared."""
    tensors = [
        (name, tensor.dtype, tensor.shape, tensor.num_bytes)
        for name, tensor in chunk.tensors.items()
    ]
    described = (chunk.request_id, chunk.kind, chunk.index, chunk.last, chunk.meta, tensors)
    header = _encoder.encode(described)
    buffers = [tensor.data for tensor in chunk.tensors.values()]
    return Record(header, buffers, len(header) + chunk.num_bytes, chunk.last)


def decode(header: Any, body: Any) -> Chunk:
    """The chunk whose tensors share the memory of `body`."""
    request_id, kind, index, last, meta, described = _decoder.decode(header)
    tensors = {}
    start = 0
    for name, dtype, shape, num_bytes in described:
        tensors[name] = Tensor(dtype, tuple(shape), body[start : start + num_bytes])
        start += num_bytes
    return Chunk(request_id, kind, index, tensors, meta, last)
