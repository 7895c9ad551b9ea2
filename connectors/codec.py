"""Chunks as bytes: a msgpack header, then each tensor's bytes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnistage.connectors.chunk import Chunk, Tensor

Header = tuple[str, str, int, bool, dict[str, Any], list[tuple[str, str, list[int], int]]]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode(chunk: Chunk) -> tuple[bytes, Sequence[Any]]:
    """The header, and the tensors' buffers that follow it."""
    tensors = [
        (name, tensor.dtype, tensor.shape, tensor.num_bytes)
        for name, tensor in chunk.tensors.items()
    ]
    header = (chunk.request_id, chunk.kind, chunk.index, chunk.last, chunk.meta, tensors)
    return _encoder.encode(header), [tensor.data for tensor in chunk.tensors.values()]


def decode(header: Any, body: Any) -> Chunk:
    """The chunk whose tensors share the memory of `body`."""
    request_id, kind, index, last, meta, described = _decoder.decode(header)
    tensors = {}
    start = 0
    for name, dtype, shape, num_bytes in described:
        tensors[name] = Tensor(dtype, tuple(shape), body[start : start + num_bytes])
        start += num_bytes
    return Chunk(request_id, kind, index, tensors, meta, last)
