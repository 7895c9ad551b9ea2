"""Inputs of requests that come while they run: values of columns and rows of the stage upstream.

A request knows from the start how long its prompt is, the inputs of every prompt position that
needs nothing from upstream, which positions take a hidden row, and at which position the first
value of the feed goes. All else arrives through the feed, and `available` says how far the leading
positions are complete: a position beyond it is waited for, never filled with zeros. Which columns
and rows there are, a family declares (step_schema.py).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.edge import Edge, Rows, Tokens
from omnistage.stages.vllm.step import Ints
from omnistage.stages.vllm.step_schema import Layout, RowInput, StepSchema, torch_dtype

logger = logging.getLogger(__name__)

ALL = 1 << 60
NONE: Ints = np.zeros(0, np.int32)
EARLY_S = 30.0  # chunks of a request that the engine does not get within this time are dropped


def late_input_options(
    request_id: str,
    inputs: Ints,
    *,
    hidden_positions: Ints = NONE,
    hidden_sources: Ints = NONE,
    first_token_position: int,
    position_delta: int = 0,
    ends: Mapping[str, tuple[float, float]],
    fed: Mapping[str, Sequence[float]] | None = None,
    complete: bool = False,
) -> dict[str, Any]:
    """Describe a request's late inputs as plain values that travel in `extra_args`.

    `inputs`: the prompt's columns, as `Layout.pack` makes them; hidden row `hidden_sources[k]` of
    the feed goes to position `hidden_positions[k]`, both ascending. By the tensors that columns
    are fed by: `fed`, the first values, if they are known; `ends`, the value after the last one,
    then for ever.
    """
    return {
        "id": request_id,
        "num_prompt": len(inputs),
        "inputs": inputs.tobytes(),
        "hidden_positions": hidden_positions.astype(np.int32).tobytes(),
        "hidden_sources": hidden_sources.astype(np.int32).tobytes(),
        "first_token_position": first_token_position,
        "position_delta": position_delta,
        "ends": {name: list(values) for name, values in ends.items()},
        "fed": {name: list(values) for name, values in (fed or {}).items()},
        "complete": complete,
    }


class RequestInputs:
    """The inputs of one request, as far as they have come."""

    def __init__(self, options: Mapping[str, Any], layout: Layout, max_model_len: int) -> None:
        self.request_id: str = options["id"]
        self.num_prompt: int = options["num_prompt"]
        self._layout = layout
        self.table = _table(options, layout, max_model_len)
        self._hidden_positions = np.frombuffer(options["hidden_positions"], np.int32)
        self._hidden_sources = np.frombuffer(options["hidden_sources"], np.int32)
        self._hidden: list[npt.NDArray[np.uint8] | None] = [None] * len(self._hidden_positions)
        self._num_hidden = 0
        self._next_token = options["first_token_position"]
        self._ends: Mapping[str, list[float]] = options["ends"]
        self._is_complete = False
        self.waits_since = time.monotonic()
        self.has_heard = False
        self.is_refused = False  # what came does not fit to what its family declares
        self._add_fed(
            {name: np.asarray(values) for name, values in options["fed"].items()},
            options["complete"],
        )

    @property
    def has_all(self) -> bool:
        """Whether nothing more will come."""
        return self._is_complete and self._num_hidden == len(self._hidden)

    def is_token_due(self, num_tokens: int) -> bool:
        """Whether its rows have come, the last for one of the prompt's last `num_tokens` positions.

        Then upstream has read its prompt to the end, and the first token is what comes next.
        """
        if not self._hidden or self._num_hidden < len(self._hidden):
            return False
        is_near_end = self.num_prompt - int(self._hidden_positions[-1]) <= num_tokens
        return is_near_end and not self._is_complete and self._next_token < self.num_prompt

    @property
    def available(self) -> int:
        """Leading positions whose inputs are complete."""
        tokens = ALL if self._is_complete else self._next_token
        if self._num_hidden < len(self._hidden):
            return min(tokens, int(self._hidden_positions[self._num_hidden]))
        return tokens

    def add(self, chunk: Chunk[Edge], rows: RowInput | None = None) -> None:
        """Take a chunk of the feed: values of columns, or rows and their `positions`.

        Raises ValueError for what its family does not declare.
        """
        self.waits_since = time.monotonic()
        self.has_heard = True
        if isinstance(chunk.message, Tokens):
            values = {name: one.numpy() for name, one in chunk.tensors.items()}
            self._add_fed(values, chunk.last)
        elif isinstance(chunk.message, Rows) and rows is not None and rows.name in chunk.tensors:
            self._add_rows(chunk, rows)

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
            rest = self._layout.of_inputs(self.table, column.name)[self._next_token :]
            after_last, for_ever = self._ends[column.fed_by]
            rest[:1], rest[1:] = after_last, for_ever
        self._is_complete = True

    def _add_rows(self, chunk: Chunk[Edge], rows: RowInput) -> None:
        """Keep the rows that were asked for; a repeat after a preemption is ignored."""
        tensor = chunk.tensors[rows.name]
        if (tensor.dtype, *tensor.shape[1:]) != (rows.dtype, rows.width):
            told = f"rows of {tensor.dtype} {list(tensor.shape[1:])}"
            raise ValueError(f"{told}; declared are {rows.dtype} [{rows.width}]")
        raw = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
        sources = chunk.tensors["positions"].numpy()
        where = np.searchsorted(self._hidden_sources, sources)
        for row, index, source in zip(raw, where, sources, strict=True):
            if index < len(self._hidden) and self._hidden_sources[index] == source:
                self._hidden[index] = row
        while self._num_hidden < len(self._hidden) and self._hidden[self._num_hidden] is not None:
            self._num_hidden += 1

    def hidden_between(self, start: int, end: int) -> tuple[Ints, list[npt.NDArray[np.uint8]]]:
        """Positions in [start, end) that take a hidden row, and the rows."""
        low, high = np.searchsorted(self._hidden_positions, [start, end])
        rows = [row for row in self._hidden[low:high] if row is not None]
        assert len(rows) == high - low, "a hidden row was scheduled before it came"
        return self._hidden_positions[low:high], rows


def resolved(rows: RowInput | None, engine_dtype: torch.dtype) -> RowInput | None:
    """Rows with the dtype that they come in."""
    if rows is None:
        return None
    dtype = str(torch_dtype(rows.dtype, engine_dtype)).removeprefix("torch.")
    return msgspec.structs.replace(rows, dtype=dtype)


def _table(options: Mapping[str, Any], layout: Layout, max_model_len: int) -> Ints:
    """A request's inputs by position, as far as they are known from the start."""
    num_prompt = options["num_prompt"]
    table = np.zeros((max_model_len + 1, layout.num_inputs), np.int32)
    table[:num_prompt] = np.frombuffer(options["inputs"], np.int32).reshape(num_prompt, -1)
    positions = np.arange(num_prompt, max_model_len + 1)[:, None] + options["position_delta"]
    for column in layout.columns:
        rest = layout.of_inputs(table, column.name)[num_prompt:]
        rest[:] = positions if column.counts else column.blank
    return table


class LateInputs:
    """All requests' late inputs, fed by the receivers of the stage upstream."""

    def __init__(
        self,
        receivers: list[Receiver[Edge]],
        schema: StepSchema,
        engine_dtype: torch.dtype,
        max_model_len: int,
        first_chunk_s: float,
        next_chunk_s: float,
    ) -> None:
        self._receivers = receivers
        self.layout = Layout(schema.columns)
        self._rows = resolved(schema.rows, engine_dtype)
        self._max_model_len = max_model_len
        self._limits_s = (first_chunk_s, next_chunk_s)
        self._by_id: dict[str, RequestInputs] = {}
        self._expected: set[str] = set()
        self._early: OrderedDict[str, tuple[float, list[Chunk[Edge]]]] = OrderedDict()

    def expect(self, request_id: str) -> None:
        """The engine has the request: keep what comes for it until it is opened or closed."""
        self._expected.add(request_id)

    def open(self, options: Mapping[str, Any]) -> RequestInputs:
        """Inputs of a request; what came before the request did is added now."""
        request_id = options["id"]
        inputs = self._by_id.get(request_id)
        if inputs is None:
            inputs = self._by_id[request_id] = RequestInputs(
                options, self.layout, self._max_model_len
            )
            for chunk in self._early.pop(request_id, (0.0, ()))[1]:
                self._add(inputs, chunk)
        return inputs

    def close(self, request_id: str) -> None:
        """Forget a request that finished or was aborted."""
        self._by_id.pop(request_id, None)
        self._early.pop(request_id, None)
        self._expected.discard(request_id)
        for receiver in self._receivers:
            receiver.forget(request_id)

    def collect(self) -> None:
        """Take everything that has arrived, without waiting."""
        for receiver in self._receivers:
            while (chunk := receiver.receive()) is not None:
                receiver.grant(chunk.request_id)
                inputs = self._by_id.get(chunk.request_id)
                if inputs is not None:
                    self._add(inputs, chunk)
                else:
                    new: tuple[float, list[Chunk[Edge]]] = (time.monotonic(), [])
                    self._early.setdefault(chunk.request_id, new)[1].append(chunk)

    def _add(self, inputs: RequestInputs, chunk: Chunk[Edge]) -> None:
        """What does not fit ends its request, not the engine."""
        if inputs.is_refused:
            return
        try:
            inputs.add(chunk, self._rows)
        except (KeyError, ValueError):
            logger.exception("an input of request %s was refused", inputs.request_id)
            inputs.is_refused = True

    def overdue(self) -> list[str]:
        """Requests whose next input did not come in time; also forgets what nobody asked for."""
        now = time.monotonic()
        for request_id, (came_at, _) in list(self._early.items()):
            if now - came_at > EARLY_S and request_id not in self._expected:
                del self._early[request_id]
        return [
            request_id
            for request_id, inputs in self._by_id.items()
            if inputs.is_refused
            or (not inputs.has_all and now - inputs.waits_since > self._limits_s[inputs.has_heard])
        ]

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives, at most `timeout_s`."""
        if self._receivers:
            self._receivers[0].wait(timeout_s)

    def shutdown(self) -> None:
        """Close the receivers."""
        for receiver in self._receivers:
            receiver.close()
