"""Chunks as records of bytes: a prefix, a msgpack header, and a body of the tensors' bytes.

The body and each tensor in it start at a multiple of ALIGNMENT, in a record as in the memory that
a body is received in: what reads a tensor may use any vector instruction.
"""

import ctypes
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.messages import M, Messages, encode_header

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
PREFIX = struct.Struct("<QQII")  # record bytes, when it was made, header bytes, slot


class Record(msgspec.Struct, frozen=True):
    """A chunk ready to be written: its header, and its tensors' (start, size, buffer).

    `made_ns` is of the monotonic clock, which all processes of a machine share.
    """

    header: bytes
    parts: Sequence[tuple[int, int, Any]]
    num_bytes: int
    is_last: bool
    made_ns: int


def aligned(num_bytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def empty(num_bytes: int) -> memoryview:
    """Memory that starts at a multiple of ALIGNMENT, with whatever is in it."""
    if num_bytes == 0:
        return memoryview(bytearray())
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8).data
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNMENT
    return memory[start : start + num_bytes]


def encode(chunk: Chunk) -> Record:
    """Describe the chunk; the tensors' memory is shared."""
    sizes = [tensor.num_bytes for tensor in chunk.tensors.values()]
    tensors = [
        (name, tensor.dtype, tensor.shape, size)
        for (name, tensor), size in zip(chunk.tensors.items(), sizes, strict=True)
    ]
    header = encode_header((chunk.request_id, chunk.message, chunk.index, chunk.last, tensors))
    start = aligned(PREFIX.size + len(header))
    parts = []
    for tensor, size in zip(chunk.tensors.values(), sizes, strict=True):
        parts.append((start, size, tensor.data))
        start += aligned(size)
    return Record(header, parts, start, chunk.last, time.monotonic_ns())


def decode(header: bytes, body: memoryview, messages: Messages[M]) -> Chunk[M]:
    """The chunk whose tensors share the memory of `body`, or of a copy if its message is not in
    place; raises UnknownMessage.
    """
    request_id, message, index, last, described = messages.decode(header)
    if not message.in_place:
        place, body = body, empty(len(body))
        body[:] = place
    tensors = {}
    start = 0
    for name, dtype, shape, num_bytes in described:
        tensors[name] = Tensor(dtype, shape, body[start : start + num_bytes])
        start += aligned(num_bytes)
    return Chunk(request_id, message, index, tensors, last)
