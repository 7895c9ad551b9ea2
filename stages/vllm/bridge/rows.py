"""The row of each running request, and the KV slot of each of its positions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of one step, request after request: int64 [n] each."""

    rows: Longs
    positions: Longs
    slots: Longs
    is_last: npt.NDArray[np.bool_]


class RowNumbers:
    """Rows 1 to num_rows; row 0 is the dummy of padding and profiling."""

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self._block_size = block_size
        self.row_of: dict[str, int] = {}
        self._free = list(range(num_rows, 0, -1))
        max_blocks = -(-max_model_len // block_size) + 1
        self._blocks = np.zeros((num_rows + 1, max_blocks), np.int64)
        self._num_blocks = [0] * (num_rows + 1)
        self._computed = np.zeros(num_rows + 1, np.int64)
        self.num_prompt = np.zeros(num_rows + 1, np.int64)
        self._known: tuple[list[str], Longs] = [], np.zeros(0, np.int64)  # of the last step

    def release(self, output: SchedulerOutput) -> list[tuple[str, int]]:
        """Free the rows of finished requests; must come before `assign`."""
        freed = []
        for request_id in output.finished_req_ids:
            row = self.row_of.pop(request_id, None)
            if row is not None:
                self._free.append(row)
                self._forget_known()
                freed.append((request_id, row))
        return freed

    def assign(self, output: SchedulerOutput) -> list[tuple[int, NewRequestData]]:
        """Rows of requests seen for the first time; blocks and progress of all."""
        started = []
        for new in output.scheduled_new_reqs:
            row = self.row_of.get(new.req_id)
            if row is None:
                row = self.row_of[new.req_id] = self._free.pop()
                self._forget_known()
                self.num_prompt[row] = len(new.prompt_token_ids or ())
                started.append((row, new))
            self._num_blocks[row] = 0
            self._extend(row, new.block_ids[0])
            self._computed[row] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request_id in cached.resumed_req_ids:
            self._num_blocks[self.row_of[request_id]] = 0
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None:
                self._extend(self.row_of[request_id], blocks[0])
        if cached.req_ids:
            self._computed[self._rows_of(cached.req_ids)] = cached.num_computed_tokens
        return started

    def _rows_of(self, request_ids: list[str]) -> Longs:
        """Rows of a step's requests, which mostly are those of the step before; not to be written.

        The comparison of equal lists takes a few per cent of the time that looking all up does.
        """
        if request_ids != self._known[0]:
            rows = [self.row_of[request_id] for request_id in request_ids]
            self._known = request_ids, np.array(rows, np.int64)
        return self._known[1]

    def _forget_known(self) -> None:
        """An id may get another row."""
        self._known = [], np.zeros(0, np.int64)

    def _extend(self, row: int, blocks: list[int]) -> None:
        count = self._num_blocks[row]
        self._blocks[row, count : count + len(blocks)] = blocks
        self._num_blocks[row] = count + len(blocks)

    def tokens(self, output: SchedulerOutput) -> StepTokens:
        """Expand the step's requests to their tokens, without a loop per token."""
        scheduled = output.num_scheduled_tokens
        rows = self._rows_of(list(scheduled))
        positions = self._computed[rows]
        is_last = np.ones(len(rows), bool)
        if sum(scheduled.values()) != len(rows):
            counts = np.array(list(scheduled.values()), np.int64)
            ends = np.cumsum(counts)
            rows, positions = np.repeat(rows, counts), np.repeat(positions, counts)
            positions += np.arange(ends[-1]) - np.repeat(ends - counts, counts)
            is_last = np.zeros(ends[-1], bool)
            is_last[ends - 1] = True
        blocks, offsets = np.divmod(positions, self._block_size)
        slots = self._blocks[rows, blocks] * self._block_size + offsets
        return StepTokens(rows, positions, slots, is_last)
