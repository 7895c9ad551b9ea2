"""Inputs of requests that come while they run: token ids and hidden rows of the stage upstream.

A request knows from the start how long its prompt is, the inputs of every prompt position that
needs nothing from upstream, which positions take a hidden row, and at which position the first
upstream token goes. All else arrives through the feed, and `available` says how far the leading
positions are complete: a position beyond it is waited for, never filled with zeros.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.edge import Edge, Rows, Tokens
from omnistage.stages.vllm.step import NUM_INPUTS, Ints

ALL = 1 << 60
EARLY_S = 30.0  # chunks of a request that the engine does not get within this time are dropped


def late_input_options(
    request_id: str,
    inputs: Ints,
    *,
    hidden_positions: Ints,
    hidden_sources: Ints,
    first_token_position: int,
    position_delta: int,
    end_ids: tuple[int, int],
    tokens: Iterable[int] = (),
    complete: bool = False,
) -> dict[str, Any]:
    """Describe a request's late inputs as plain values that travel in `extra_args`.

    `inputs` int32 [prompt, NUM_INPUTS]; hidden row `hidden_sources[k]` of the feed goes to position
    `hidden_positions[k]`, both ascending. `end_ids`: the token after the last one, then for ever.
    """
    return {
        "id": request_id,
        "inputs": inputs.astype(np.int32).tobytes(),
        "hidden_positions": hidden_positions.astype(np.int32).tobytes(),
        "hidden_sources": hidden_sources.astype(np.int32).tobytes(),
        "first_token_position": first_token_position,
        "position_delta": position_delta,
        "end_ids": list(end_ids),
        "tokens": list(tokens),
        "complete": complete,
    }


class RequestInputs:
    """The inputs of one request, as far as they have come."""

    def __init__(self, options: Mapping[str, Any], max_model_len: int) -> None:
        self.request_id: str = options["id"]
        prompt = np.frombuffer(options["inputs"], np.int32).reshape(-1, NUM_INPUTS)
        num_prompt = len(prompt)
        self.table = np.empty((max_model_len + 1, NUM_INPUTS), np.int32)
        self.table[:num_prompt] = prompt
        self.table[num_prompt:, :2] = -1
        decode = np.arange(num_prompt, max_model_len + 1) + options["position_delta"]
        self.table[num_prompt:, 2:] = decode[:, None]
        self.num_prompt = num_prompt
        self._hidden_positions = np.frombuffer(options["hidden_positions"], np.int32)
        self._hidden_sources = np.frombuffer(options["hidden_sources"], np.int32)
        self._hidden: list[npt.NDArray[np.uint8] | None] = [None] * len(self._hidden_positions)
        self._num_hidden = 0
        self._next_token = options["first_token_position"]
        self._end_ids: list[int] = options["end_ids"]
        self._is_complete = False
        self.waits_since = time.monotonic()
        self.has_heard = False
        self.add_tokens(options["tokens"], options["complete"])

    @property
    def has_all(self) -> bool:
        """Whether nothing more will come."""
        return self._is_complete and self._num_hidden == len(self._hidden)

    @property
    def available(self) -> int:
        """Leading positions whose inputs are complete."""
        tokens = ALL if self._is_complete else self._next_token
        if self._num_hidden < len(self._hidden):
            return min(tokens, int(self._hidden_positions[self._num_hidden]))
        return tokens

    def add(self, chunk: Chunk[Edge]) -> None:
        """Take a chunk of the feed: `tokens` int32 [n], or `hidden` [n, width] and `positions`."""
        self.waits_since = time.monotonic()
        self.has_heard = True
        if isinstance(chunk.message, Tokens):
            tokens = chunk.tensors["tokens"].numpy() if "tokens" in chunk.tensors else ()
            self.add_tokens(tokens, chunk.last)
        elif isinstance(chunk.message, Rows) and "hidden" in chunk.tensors:
            self.add_hidden(chunk)

    def add_tokens(self, tokens: Iterable[int], last: bool) -> None:
        """Append upstream tokens; after the last, the end ids."""
        if self._is_complete:
            return
        values = np.fromiter(tokens, np.int32)
        room = self.table[self._next_token : self._next_token + len(values)]
        room[:, 0] = values[: len(room)]
        self._next_token += len(values)
        if last:
            self.table[self._next_token : self._next_token + 1, 0] = self._end_ids[0]
            self.table[self._next_token + 1 :, 0] = self._end_ids[1]
            self._is_complete = True

    def add_hidden(self, chunk: Chunk[Edge]) -> None:
        """Keep the rows that were asked for; a repeat after a preemption is ignored."""
        tensor = chunk.tensors["hidden"]
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


class LateInputs:
    """All requests' late inputs, fed by the receivers of the stage upstream."""

    def __init__(
        self,
        receivers: list[Receiver[Edge]],
        max_model_len: int,
        first_chunk_s: float,
        next_chunk_s: float,
    ) -> None:
        self._receivers = receivers
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
            inputs = self._by_id[request_id] = RequestInputs(options, self._max_model_len)
            for chunk in self._early.pop(request_id, (0.0, ()))[1]:
                inputs.add(chunk)
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
                    inputs.add(chunk)
                else:
                    new: tuple[float, list[Chunk[Edge]]] = (time.monotonic(), [])
                    self._early.setdefault(chunk.request_id, new)[1].append(chunk)

    def overdue(self) -> list[str]:
        """Requests whose next input did not come in time; also forgets what nobody asked for."""
        now = time.monotonic()
        for request_id, (came_at, _) in list(self._early.items()):
            if now - came_at > EARLY_S and request_id not in self._expected:
                del self._early[request_id]
        return [
            request_id
            for request_id, inputs in self._by_id.items()
            if not inputs.has_all and now - inputs.waits_since > self._limits_s[inputs.has_heard]
        ]

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives, at most `timeout_s`."""
        if self._receivers:
            self._receivers[0].wait(timeout_s)

    def shutdown(self) -> None:
        """Close the receivers."""
        for receiver in self._receivers:
            receiver.close()
