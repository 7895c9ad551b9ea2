"""A thinker's answer on its way to a talker: what both sides of the edge say of a request."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import NothingToSay, Open, Waits, described
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.released_tokens import ReleasedTokens
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.worker.stage import Downstream


class ThinkerPrompt(msgspec.Struct, frozen=True):
    """The prompt of the thinker for the talker, besides its ids: places of its images and
    videos.
    """

    grids: list[Grid] = []


class SpokenAnswer(ABC):
    """One answer's way along one edge; a family says what of it the talker is fed.

    `text_length`: of the text that token ids are. An answer that was never announced ends in
    silence.
    """

    def __init__(
        self,
        request_id: str,
        request: Request,
        edge: Downstream,
        text_length: Callable[[list[int]], int],
    ) -> None:
        self.request_id = request_id
        self._request = request.with_body(None)  # which is long, and ours alone
        self._to = edge
        self._released = ReleasedTokens(request.fields, text_length)
        self._is_open = False

    def open(self, prompt_ids: Sequence[int], grids: Sequence[Grid]) -> None:
        """Announce the request to the talker, before the thinker has seen its prompt."""
        self._is_open = True
        message = Open(self._request, described(ThinkerPrompt(list(grids))))
        prompt = Tensor.from_numpy(np.asarray(prompt_ids, np.int32))
        self._to.announce(self.request_id, message, {"prompt": prompt})

    @abstractmethod
    def add(self, chunk: JsonMap) -> None:
        """Take one chunk of the answer."""

    def show_life(self) -> None:
        """Tell the talker's engine and its process that more will come: we wait for our client."""
        if self._is_open:
            self._feed_life()
            self._to.announce(self.request_id, Waits())

    def finish(self) -> None:
        """The answer is complete; one without text is announced as silent."""
        if not self._is_open:
            return
        if self._is_silent:  # an engine that is told that it has all would speak
            self._to.announce(self.request_id, NothingToSay())
            self._to.feed.forget(self.request_id)
        else:
            self._feed_rest()

    @property
    @abstractmethod
    def _is_silent(self) -> bool:
        """Returns whether nothing of the answer was spoken, nor will be."""

    @abstractmethod
    def _feed_life(self) -> None:
        """Feed the engine a chunk with nothing new."""

    @abstractmethod
    def _feed_rest(self) -> None:
        """Feed the engine what waits, and its last chunk."""
