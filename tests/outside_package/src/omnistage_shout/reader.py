"""The first stage: the last message of a chat in, its words as token ids out."""

import re

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.messages.edge import NothingToSay, Open, StageTokens, described
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts


class WordsToCome(msgspec.Struct, frozen=True):
    """What the next stage knows of a request before its words come."""

    num_words: int


class Reader:
    """The token ids of a word are its characters."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        """A stage with weights loads them here, and serves one request of its own."""
        return Ready()

    async def serve(self, opened: Opened) -> None:
        """Announce the request to the next stage, then send its words one by one."""
        text = opened.request.fields["messages"][-1]["content"]
        if not isinstance(text, str):
            raise RequestError(400, "This model reads text only.", param="messages")
        words = re.findall(r"\s*\S+", text)
        announced = Open(opened.request, described(WordsToCome(len(words))))
        for edge in self._ports.live(opened.request):
            edge.open.send(Chunk(opened.id, announced, last=True))
            for index, word in enumerate(words):
                ids = np.array([ord(letter) for letter in word], np.int32)
                tensors = {"tokens": Tensor.from_numpy(ids)}
                edge.feed.send(Chunk(opened.id, StageTokens(), index, tensors))
            edge.feed.send(Chunk(opened.id, NothingToSay(), len(words), last=True))

    async def alive(self) -> None:
        """There is no engine to ask: whoever runs this is alive."""

    async def close(self) -> None:
        """There is nothing to give back."""
