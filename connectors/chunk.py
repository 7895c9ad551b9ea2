"""The chunks that travel along an edge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np

from omnistage.connectors.messages import M_co

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}


@dataclass(frozen=True, slots=True)
class Filling:
    """The data of a tensor that is made where it goes: `fill` writes all of a channel's place."""

    num_bytes: int
    fill: Callable[[memoryview], None]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Bytes in C order with a dtype's name and a shape; numpy has no bfloat16, bytes do."""

    dtype: str
    shape: tuple[int, ...]
    data: Any  # a C-contiguous buffer of bytes, or a Filling in a chunk that is offered

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> "Tensor":
        """Share a contiguous array's memory; copies one that is not contiguous."""
        name = str(array.dtype)
        if name not in ITEM_BYTES:
            raise ValueError(f"dtype {name!r} is none of {', '.join(ITEM_BYTES)}")
        contiguous = np.ascontiguousarray(array)
        data: Any = contiguous.reshape(-1).data.cast("B") if contiguous.size else b""
        return cls(name, tuple(array.shape), data)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A view of the bytes; raises ValueError for bfloat16."""
        if self.dtype == "bfloat16":
            raise ValueError("numpy has no bfloat16: read the bytes of `data`")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        if isinstance(self.data, Filling):
            return self.data.num_bytes
        return memoryview(self.data).nbytes


@dataclass(frozen=True, slots=True)
class Chunk(Generic[M_co]):
    """A piece of one request's data: what it says, and the tensors that it carries."""

    request_id: str
    message: M_co
    index: int = 0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    last: bool = False

    @property
    def num_bytes(self) -> int:
        """Size of the tensors' data."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    def owned(self) -> "Chunk[M_co]":
        """Returns the chunk with memory of its own, which one has whose message is not in place."""
        if not self.message.in_place:
            return self
        tensors = {
            name: replace(tensor, data=bytearray(tensor.data))
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=tensors)
