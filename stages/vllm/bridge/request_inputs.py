"""Collects the late inputs of one request."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.edge import Edge, Rows, RowsReleased, StageTokens
from omnistage.stages.vllm.bridge.late_rows import ALL, LateRows
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import LatePrompt
from omnistage.stages.vllm.step.step import Ints
from omnistage.stages.vllm.step.step_schema import ColumnLayout


class RequestInputs:
    """The inputs of one request, as far as they have come."""

    def __init__(
        self,
        request_id: str,
        prompt: LatePrompt,
        layout: ColumnLayout,
        max_model_len: int,
        store: RowStore | None = None,
    ) -> None:
        self.request_id = request_id
        self.num_prompt = prompt.num_prompt
        self._layout = layout
        self.table = _table(prompt, layout, max_model_len)
        self.rows = LateRows(prompt, store, max_model_len) if store is not None else None
        self._next_token = prompt.first_token_position
        self._ends = prompt.ends
        self._is_complete = not layout.fed
        self.waits_since = time.monotonic()
        self.has_heard = False
        self.is_refused = False  # what came does not fit to what its family declares
        self._add_fed(
            {name: np.asarray(values) for name, values in prompt.fed.items()}, prompt.complete
        )
        self.available = self._count_available()  # leading positions whose inputs are complete

    @property
    def has_all(self) -> bool:
        """Returns whether nothing more will come."""
        return self.available == ALL

    def is_token_due(self, num_tokens: int) -> bool:
        """Returns whether its rows have come, the last for one of the prompt's last `num_tokens`
        positions.

        Then upstream has read its prompt to the end, and the first token is what comes next, or
        that token's row.
        """
        last = None if self.rows is None else self.rows.last_known
        if last is None or self.num_prompt - last > num_tokens:
            return False
        return self.available < self.num_prompt

    def _count_available(self) -> int:
        tokens = ALL if self._is_complete else self._next_token
        return tokens if self.rows is None else min(tokens, self.rows.available)

    def add(self, chunk: Chunk[Edge]) -> None:
        """Take a chunk of the feed: values of columns, rows, or how many rows count.

        Raises ValueError for what its family does not declare.
        """
        self.waits_since = time.monotonic()
        self.has_heard = True
        message, rows = chunk.message, self.rows
        if isinstance(message, StageTokens):
            values = {name: one.numpy() for name, one in chunk.tensors.items()}
            self._add_fed(values, chunk.last)
        elif isinstance(message, Rows) and rows is not None and rows.are_in(chunk):
            rows.add(chunk)
        elif isinstance(message, RowsReleased) and rows is not None:
            rows.release(message, chunk.last)
            if chunk.last:
                self._end_rows(rows.end)
        self.available = self._count_available()

    def close(self) -> None:
        """Drops the state of a request that has ended."""
        if self.rows is not None:
            self.rows.close()

    def _add_fed(self, values: Mapping[str, npt.NDArray[Any]], last: bool) -> None:
        """Append a line of every column that is fed; after the last, the ends."""
        if self._is_complete:
            return
        if values:
            self._next_token += self._fill(values)
        if last:
            self._end()

    def _fill(self, values: Mapping[str, npt.NDArray[Any]]) -> int:
        """Put values of every fed column behind those that have come; how many each has."""
        count: int | None = None
        for column in self._layout.fed:
            came = values[column.fed_by]
            if count not in (None, len(came)):
                raise ValueError(f"tensors of different lengths: {count} and {len(came)}")
            count = len(came)
            room = self.table[self._next_token : self._next_token + count]
            lines = came if came.ndim > 1 else came[:, None]
            self._layout.of_inputs(room, column.name)[:] = lines[: len(room)]
        return count or 0

    def _end(self) -> None:
        """Beyond the last value come the ends."""
        for column in self._layout.fed:
            self._fill_ends(column.name, self._next_token, self._ends[column.fed_by])
        self._is_complete = True

    def _end_rows(self, position: int) -> None:
        """Beyond the last row come the ends."""
        for column in self._layout.after_rows:
            self._fill_ends(column.name, position, self._ends[column.name])

    def _fill_ends(self, name: str, position: int, ends: Sequence[float]) -> None:
        rest = self._layout.of_inputs(self.table, name)[position:]
        rest[:1], rest[1:] = ends


def _table(prompt: LatePrompt, layout: ColumnLayout, max_model_len: int) -> Ints:
    """A request's inputs by position, as far as they are known from the start."""
    num_prompt = prompt.num_prompt
    table = np.zeros((max_model_len + 1, layout.num_inputs), np.int32)
    table[:num_prompt] = np.frombuffer(prompt.inputs, np.int32).reshape(num_prompt, -1)
    positions = np.arange(num_prompt, max_model_len + 1)[:, None] + prompt.position_delta
    for column in layout.columns:
        rest = layout.of_inputs(table, column.name)[num_prompt:]
        rest[:] = positions if column.counts else column.blank
    return table
