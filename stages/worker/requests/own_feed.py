"""The channel from a stage's process to its own engine."""

from collections.abc import Sequence

import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Sender
from omnistage.stages.messages.edge import StageTokens


class OwnFeed:
    """One request's tokens on their way to the engine that speaks them: tensors `tokens`."""

    def __init__(self, sender: Sender, request_id: str) -> None:
        self._sender = sender
        self._request_id = request_id
        self._num_sent = 0

    def send(self, token_ids: Sequence[int], last: bool = False) -> None:
        """More of them; none follow the last."""
        tensors = {"tokens": Tensor.from_numpy(np.asarray(token_ids, np.int32))}
        self._sender.send(Chunk(self._request_id, StageTokens(), self._num_sent, tensors, last))
        self._num_sent += len(token_ids)

    def show_life(self) -> None:
        """More will come: we wait for our client."""
        self._sender.send(Chunk(self._request_id, StageTokens(), self._num_sent))
