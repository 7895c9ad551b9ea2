"""Gathers the results of each request, by its row, until a chunk is full."""

from typing import Protocol

import numpy as np
import torch

from omnistage.stages.vllm.step.step import Ints

Longs = np.ndarray[tuple[int], np.dtype[np.int64]]


class Gathering(Protocol):
    """Lines of results, one row's after another's; rows are 1 to `num_rows`."""

    def open(self, row: int) -> None:
        """Begin a request: nothing waits."""

    def add(self, rows: Ints, positions: Ints, values: torch.Tensor) -> tuple[Ints, Longs]:
        """Take lines [n, …]; returns the rows that they are of, each once, and what waits there."""

    def drain(self, row: int) -> tuple[Ints, torch.Tensor]:
        """Positions and values of all that waits; it waits no longer."""


class Frames:
    """Results that come one per step and in order, as codec frames do: no work for each row."""

    def __init__(self, num_rows: int) -> None:
        self._first = np.zeros(num_rows + 1, np.int64)
        self._num_waiting = np.zeros(num_rows + 1, np.int64)
        self._values = torch.empty(num_rows + 1, 0)

    def open(self, row: int) -> None:
        """Begin a request: nothing waits."""
        self._first[row] = self._num_waiting[row] = 0

    def add(self, rows: Ints, positions: Ints, values: torch.Tensor) -> tuple[Ints, Longs]:
        """Take a line of each row, its next one."""
        places = positions - self._first[rows]
        most = int(places.max())
        if most >= self._values.shape[1]:
            self._grow(2 * most + 8, values)
        self._values[torch.from_numpy(rows), torch.from_numpy(places)] = values
        self._num_waiting[rows] = places + 1
        return rows, places + 1

    def _grow(self, size: int, like: torch.Tensor) -> None:
        num_rows, before = self._values.shape[:2]
        values = like.new_empty(num_rows, size, *like.shape[1:])
        if before:
            values[:, :before] = self._values
        self._values = values

    def drain(self, row: int) -> tuple[Ints, torch.Tensor]:
        """Positions and values of all that waits; it waits no longer."""
        first, count = self._first[row], self._num_waiting[row]
        self._first[row], self._num_waiting[row] = first + count, 0
        return np.arange(first, first + count, dtype=np.int32), self._values[row, :count].clone()


class Lines:
    """Results that may leave positions out and come many per step, as a prompt's rows do."""

    def __init__(self, num_rows: int) -> None:
        self._parts: list[list[tuple[Ints, torch.Tensor]]] = [[] for _ in range(num_rows + 1)]
        self._num_waiting = np.zeros(num_rows + 1, np.int64)

    def open(self, row: int) -> None:
        """Begin a request: nothing waits."""
        self._parts[row], self._num_waiting[row] = [], 0

    def add(self, rows: Ints, positions: Ints, values: torch.Tensor) -> tuple[Ints, Longs]:
        """Take lines; those of a row are neighbours."""
        edges = np.flatnonzero(np.diff(rows, prepend=-1))
        distinct, starts = rows[edges], edges.tolist()
        ends = [*starts[1:], len(rows)]
        for row, start, end in zip(distinct.tolist(), starts, ends, strict=True):
            self._parts[row].append((positions[start:end], values[start:end]))
        self._num_waiting[distinct] += np.diff([*starts, len(rows)])
        return distinct, self._num_waiting[distinct]

    def drain(self, row: int) -> tuple[Ints, torch.Tensor]:
        """Positions and values of all that waits; it waits no longer."""
        parts = self._parts[row] or [(np.zeros(0, np.int32), torch.empty(0))]
        self.open(row)
        if len(parts) == 1:
            return parts[0]  # as it was added, for several edges the same memory
        return np.concatenate([one for one, _ in parts]), torch.cat([two for _, two in parts])
