"""Rows of the stage upstream that have come and are not computed yet, of all requests."""

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.connectors.chunk import Tensor
from omnistage.stages.vllm.step.step import Ints
from omnistage.stages.vllm.step.step_schema import RowInput, torch_dtype

FEWEST = 512  # places of an empty store


class RowStore:
    """Rows at places from 1 on; 0 is no row's.

    It grows with the rows that wait, and gives its memory back when none is left.
    """

    def __init__(self, rows: RowInput, engine_dtype: torch.dtype) -> None:
        dtype = torch_dtype(rows.dtype, engine_dtype)
        self.declared = msgspec.structs.replace(rows, dtype=str(dtype).removeprefix("torch."))
        self._num_bytes = rows.width * dtype.itemsize
        self._empty()

    def _empty(self) -> None:
        self._rows = np.empty((FEWEST + 1, self._num_bytes), np.uint8)
        self._free = np.arange(FEWEST, 0, -1, dtype=np.int32)
        self._num_free = FEWEST

    @property
    def num_held(self) -> int:
        """Rows that wait to be computed."""
        return len(self._free) - self._num_free

    @property
    def num_bytes(self) -> int:
        """Returns what they and the free places take."""
        return self._rows.nbytes

    def raw(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The bytes of each row; raises ValueError for rows of another kind than declared."""
        declared = self.declared
        if (tensor.dtype, *tensor.shape[1:]) != (declared.dtype, declared.width):
            told = f"rows of {tensor.dtype} {list(tensor.shape[1:])}"
            raise ValueError(f"{told}; declared are {declared.dtype} [{declared.width}]")
        return np.frombuffer(tensor.data, np.uint8).reshape(-1, self._num_bytes)

    def put(self, raw: npt.NDArray[np.uint8]) -> Ints:
        """Keep rows; returns their places."""
        if len(raw) > self._num_free:
            self._grow(self.num_held + len(raw))
        self._num_free -= len(raw)
        places = self._free[self._num_free : self._num_free + len(raw)].copy()
        self._rows[places] = raw
        return places

    def _grow(self, num_rows: int) -> None:
        """Make room for at least so many, twice as much as before."""
        before = len(self._free)
        size = max(num_rows, 2 * before)
        rows = np.empty((size + 1, self._num_bytes), np.uint8)
        rows[: before + 1] = self._rows
        new = np.arange(size, before, -1, dtype=np.int32)
        free = np.empty(size, np.int32)
        self._num_free += len(new)
        free[: self._num_free] = np.concatenate([new, self._free[: self._num_free - len(new)]])
        self._rows, self._free = rows, free

    def take(self, places: Ints) -> npt.NDArray[np.uint8]:
        """The rows at these places, which are free afterwards."""
        raw = self._rows[places]
        self.drop(places)
        return raw

    def drop(self, places: Ints) -> None:
        """Free these places."""
        self._free[self._num_free : self._num_free + len(places)] = places
        self._num_free += len(places)
        if self.num_held == 0 and len(self._free) > FEWEST:
            self._empty()
