"""How much of an answer is spoken, and when the talker is told."""

from collections.abc import Callable, Sequence

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import RowsReleased
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.spoken_answer import SpokenAnswer
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.worker.stage import Downstream


class SpokenRows(SpokenAnswer):
    """One answer on its way along one edge: the engine sends a row for each position.

    Here the talker hears how many of them count: those of the prompt, and of each token whose text
    was released. They follow each other, so nothing is spoken behind a tool call or reasoning.
    """

    def __init__(
        self,
        request_id: str,
        request: Request,
        edge: Downstream,
        text_length: Callable[[list[int]], int],
    ) -> None:
        super().__init__(request_id, request, edge, text_length)
        self._num_prompt = 0
        self._num_spoken = 0
        self._is_over = False
        self._num_chunks = 0

    def open(self, prompt_ids: Sequence[int], grids: Sequence[Grid]) -> None:
        """Announce the request to the talker, before the thinker has seen its prompt."""
        super().open(prompt_ids, grids)
        self._num_prompt = len(prompt_ids)

    def open_given(self, prompt_ids: Sequence[int], num_spoken: int) -> None:
        """Announce a request that is spoken as it is: so many tokens behind this prompt."""
        self.open(prompt_ids, [])
        self._num_spoken = num_spoken
        self.finish()

    def add(self, chunk: JsonMap) -> None:
        """Take one chunk of the answer."""
        num_new = len(self._released.add(chunk))
        self._is_over = self._is_over or self._released.is_silent
        if num_new and not self._is_over:
            self._num_spoken += num_new
            self._send(last=False)

    @property
    def _is_silent(self) -> bool:
        return not self._num_spoken

    def _feed_life(self) -> None:
        self._send(last=False)

    def _feed_rest(self) -> None:
        self._send(last=True)

    def _send(self, last: bool) -> None:
        message = RowsReleased(self._num_prompt + self._num_spoken)
        self._to.feed.send(Chunk(self.request_id, message, self._num_chunks, last=last))
        self._num_chunks += 1
