"""Which row each running request has, and the KV slot of each of its positions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one step, request after request: int64 [n] each."""

    rows: Longs
    positions: Longs
    slots: Longs
    is_last: npt.NDArray[np.bool_]


class Rows:
    """Rows 1 to num_rows; row 0 is the dummy of padding and profiling."""

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.row_of: dict[str, int] = {}
        self._free = list(range(num_rows, 0, -1))
        max_blocks = -(-max_model_len // block_size) + 1
        self._blocks = np.zeros((num_rows + 1, max_blocks), np.int64)
        self._num_blocks = [0] * (num_rows + 1)
        self._computed = np.zeros(num_rows + 1, np.int64)
        self.num_prompt = np.zeros(num_rows + 1, np.int64)

    def release(self, output: SchedulerOutput) -> list[tuple[str, int]]:
        """Free the rows of finished requests; must come before `assign`."""
        freed = []
        for request_id in output.finished_req_ids:
            row = self.row_of.pop(request_id, None)
            if row is not None:
                self._free.append(row)
                freed.append((request_id, row))
        return freed

    def assign(self, output: SchedulerOutput) -> list[tuple[int, NewRequestData]]:
        """Rows of requests seen for the first time; blocks and progress of all."""
        started = []
        for new in output.scheduled_new_reqs:
            row = self.row_of.get(new.req_id)
            if row is None:
                row = self.row_of[new.req_id] = self._free.pop()
                self.num_prompt[row] = len(new.prompt_token_ids or ())
                started.append((row, new))
            self._num_blocks[row] = 0
            self._extend(row, new.block_ids[0])
            self._computed[row] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self._num_blocks[self.row_of[request_id]] = 0
            if blocks is not None:
                self._extend(self.row_of[request_id], blocks[0])
        if cached.req_ids:
            rows = [self.row_of[request_id] for request_id in cached.req_ids]
            self._computed[rows] = cached.num_computed_tokens
        return started

    def _extend(self, row: int, blocks: list[int]) -> None:
        count = self._num_blocks[row]
        self._blocks[row, count : count + len(blocks)] = blocks
        self._num_blocks[row] = count + len(blocks)

    def tokens(self, output: SchedulerOutput) -> Tokens:
        """Expand the step's requests to their tokens, without a loop per token."""
        scheduled = output.num_scheduled_tokens
        rows = np.array([self.row_of[request_id] for request_id in scheduled], np.int64)
        counts = np.array(list(scheduled.values()), np.int64)
        positions = self._computed[rows]
        ends = np.cumsum(counts)
        is_last = np.ones(len(rows), bool)
        if ends[-1] != len(rows):
            rows, positions = np.repeat(rows, counts), np.repeat(positions, counts)
            positions += np.arange(ends[-1]) - np.repeat(ends - counts, counts)
            is_last = np.zeros(ends[-1], bool)
            is_last[ends - 1] = True
        blocks = self._blocks[rows, positions // self.block_size]
        slots = blocks * self.block_size + positions % self.block_size
        return Tokens(rows, positions, slots, is_last)
