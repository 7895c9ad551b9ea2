"""Chooses the thinker's tokens that are spoken, and when they go to the talker."""

from collections.abc import Callable, Sequence

import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import StageTokens
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.spoken_answer import SpokenAnswer
from omnistage.stages.worker.stage import Downstream


class SpokenTokens(SpokenAnswer):
    """One answer's token ids on their way to the talker.

    One edge's: each has chunks of its own sizes. An id goes once its text is released to the
    client.
    """

    def __init__(
        self,
        request_id: str,
        request: Request,
        edge: Downstream,
        text_length: Callable[[list[int]], int],
    ) -> None:
        super().__init__(request_id, request, edge, text_length)
        self._sizes = list(edge.chunk_sizes)
        self._waiting: list[int] = []
        self._num_sent = 0
        self._num_chunks = 0

    def open_whole(self, prompt_ids: Sequence[int]) -> None:
        """Announce a request whose prompt ends with all that is spoken."""
        self.open(prompt_ids, [])
        self._send([], last=True)

    def say(self, token_ids: list[int]) -> None:
        """Tokens of a given text, at once: it comes at its client's pace."""
        if token_ids:
            self._send(token_ids, last=False)

    def add(self, chunk: JsonMap) -> None:
        """Take one chunk of the answer."""
        self._waiting += self._released.add(chunk)
        while self._sizes and len(self._waiting) >= (size := self._size()):
            self._send(self._waiting[:size], last=False)
            del self._waiting[:size]

    def _size(self) -> int:
        return self._sizes[min(self._num_chunks, len(self._sizes) - 1)]

    def _send(self, token_ids: list[int], last: bool) -> None:
        tensors = {"tokens": Tensor.from_numpy(np.asarray(token_ids, np.int32))}
        chunk = Chunk(self.request_id, StageTokens(), self._num_sent, tensors, last)
        self._to.feed.send(chunk)
        self._num_sent += len(token_ids)
        self._num_chunks += 1

    @property
    def _is_silent(self) -> bool:
        return not (self._num_sent or self._waiting)

    def _feed_life(self) -> None:
        self._to.feed.send(Chunk(self.request_id, StageTokens(), self._num_sent))

    def _feed_rest(self) -> None:
        self._send(self._waiting, last=True)
        self._waiting = []
