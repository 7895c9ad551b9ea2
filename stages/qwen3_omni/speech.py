"""Which of the thinker's tokens are spoken, and when they go to the talker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.messages.edge import NothingToSay, Open, Tokens, Waits, described
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.released_tokens import ReleasedTokens
from omnistage.stages.vllm.rope import Grid
from omnistage.stages.worker.stage import Downstream


class ThinkerPrompt(msgspec.Struct, frozen=True):
    """What the talker is told of a prompt besides its ids: where its images and videos are."""

    grids: list[Grid] = []


class SpokenTokens:
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
        self.request_id = request_id
        self._request = msgspec.structs.replace(request, body={})  # which is long, and ours alone
        self._to = edge
        self._sizes = list(self._to.chunk_sizes)
        self._spoken = ReleasedTokens(request.body, text_length)
        self._waiting: list[int] = []
        self._num_sent = 0
        self._num_chunks = 0
        self._is_open = False

    def open(self, prompt_ids: Sequence[int], grids: Sequence[Grid]) -> None:
        """Announce the request to the talker, before the thinker has seen its prompt."""
        self._is_open = True
        message = Open(self._request, described(ThinkerPrompt(list(grids))))
        prompt = Tensor.from_numpy(np.asarray(prompt_ids, np.int32))
        self._to.open.send(Chunk(self.request_id, message, 0, {"prompt": prompt}, last=True))

    def open_whole(self, prompt_ids: Sequence[int]) -> None:
        """Announce a request whose prompt ends with all that is spoken."""
        self.open(prompt_ids, [])
        self._send([], last=True)

    def say(self, token_ids: list[int]) -> None:
        """Tokens of a given text, at once: it comes at its client's pace."""
        if token_ids:
            self._send(token_ids, last=False)

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk of the answer."""
        self._waiting += self._spoken.add(chunk)
        while self._sizes and len(self._waiting) >= (size := self._size()):
            self._send(self._waiting[:size], last=False)
            del self._waiting[:size]

    def _size(self) -> int:
        return self._sizes[min(self._num_chunks, len(self._sizes) - 1)]

    def _send(self, token_ids: list[int], last: bool) -> None:
        tensors = {"tokens": Tensor.from_numpy(np.asarray(token_ids, np.int32))}
        chunk = Chunk(self.request_id, Tokens(), self._num_sent, tensors, last)
        self._to.feed.send(chunk)
        self._num_sent += len(token_ids)
        self._num_chunks += 1

    def show_life(self) -> None:
        """Tell the talker's engine and its process that more will come: we wait for our client."""
        if self._is_open:
            self._to.feed.send(Chunk(self.request_id, Tokens(), self._num_sent))
            self._to.open.send(Chunk(self.request_id, Waits(), last=True))

    def finish(self) -> None:
        """The answer is complete; one without text is announced as silent."""
        if not self._is_open:
            return
        if not (self._num_sent or self._waiting):
            self._to.open.send(Chunk(self.request_id, NothingToSay(), last=True))
        self._send(self._waiting, last=True)
        self._waiting = []
