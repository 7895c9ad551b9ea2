"""Rows of drafts: they leave the engine once it is known which of the drafts were accepted.

With speculative decoding a step computes rows of tokens that were only proposed. Which of them the
model accepts is known when the step's tokens are sampled: without async scheduling before the next
step is built. Until then the exporter holds their rows.
"""

from collections.abc import Sequence

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from omnistage.stages.vllm.bridge.rows import Longs
from omnistage.stages.vllm.rows.row_index import Flags


def draft_lines(output: SchedulerOutput) -> Flags:
    """Returns which of a step's tokens, request after request, are drafts: the last ones of a
    request.
    """
    drafts = output.scheduled_spec_decode_tokens
    counts = np.array(list(output.num_scheduled_tokens.values()), np.int64)
    num_drafts = [len(drafts.get(name, ())) for name in output.num_scheduled_tokens]
    ends = np.cumsum(counts)
    num_left = np.repeat(ends, counts) - np.arange(counts.sum())
    is_draft: Flags = num_left <= np.repeat(num_drafts, counts)
    return is_draft


class Drafts:
    """The drafts of one engine, in its scheduler's process: those of the last step whose rows
    wait.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        self._counts: Sequence[int] = ()
        self._positions: Longs = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Requests whose tokens are watched."""
        return len(self._requests)

    def watch(self, request: Request) -> None:
        """A request runs of which rows of drafts may leave."""
        self._requests[request.request_id] = request

    def forget(self, request_id: str) -> None:
        """It has ended; what waits of it is still settled."""
        self._requests.pop(request_id, None)

    def hold(self, request_ids: Sequence[str], counts: Sequence[int], positions: Longs) -> None:
        """Rows of drafts at `positions` wait, so many of each of these requests."""
        self._waiting = [self._requests[request_id] for request_id in request_ids]
        self._counts, self._positions = counts, positions

    def settle(self) -> Longs | None:
        """Returns which of those that wait leave, by their index; None if none waited.

        Those of which the token was accepted, but for an answer's last one: without speculation it
        is not computed either.
        """
        if not self._waiting:
            return None
        ends = np.array([request.num_tokens - 1 for request in self._waiting])
        self._waiting = []
        return np.flatnonzero(self._positions < np.repeat(ends, self._counts))
