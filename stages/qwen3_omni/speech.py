"""Which of the thinker's tokens are spoken, and when they go to the talker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.messages.edge import NothingToSay, Open, Tokens, Waits, described
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.rope import Grid
from omnistage.stages.worker.stage import Downstream


class ThinkerPrompt(msgspec.Struct, frozen=True):
    """What the talker is told of a prompt besides its ids: where its images and videos are."""

    grids: list[Grid] = []


class SpokenTokens:
    """One answer's token ids on their way to the talker.

    One edge's: each has chunks of its own sizes. An id goes once its text is released to the
    client: text held back for a stop string, or cut by one, is not spoken. Like the reference, only
    tokens that the thinker was fed back are spoken: never the last one sampled, be it EOS or the
    one at the length limit. Tool calls and reasoning are not spoken.
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
        self._has_stop = bool(request.body.get("stop"))
        self._text_length = text_length
        self._held: list[int] = []
        self._released_text = 0
        self._released: list[int] = []
        self._waiting: list[int] = []
        self._num_sent = 0
        self._num_chunks = 0
        self._is_open = False
        self._is_silent = False  # within a tool call or reasoning, or the token that ends them

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
            self._released += token_ids
            self._send(token_ids, last=False)

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk of the answer."""
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            token_ids = list(choice.get("token_ids") or ())
            if choice.get("finish_reason") is not None:
                token_ids = token_ids[:-1]
            text = delta.get("content") or ""
            if delta.get("tool_calls") or delta.get("reasoning"):
                self._is_silent = True
            elif text:
                self._is_silent = False
            if self._is_silent:
                self._held.clear()
                continue
            self._held += token_ids
            self._release(text, choice.get("finish_reason") is not None)

    def _release(self, text: str, is_finished: bool) -> None:
        if not self._has_stop:
            if text or is_finished:
                self._push(self._held)
                self._held = []
            return
        self._released_text += len(text)
        while self._held:
            length = self._text_length([*self._released, self._held[0]])
            if length > self._released_text:
                return
            self._push([self._held.pop(0)])

    def _push(self, token_ids: list[int]) -> None:
        self._released += token_ids
        self._waiting += token_ids
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
        if not self._released:
            self._to.open.send(Chunk(self.request_id, NothingToSay(), last=True))
        self._send(self._waiting, last=True)
        self._waiting = []
