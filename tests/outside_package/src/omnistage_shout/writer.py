"""The second stage: token ids in, the answer's text out."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stages.messages.edge import Edge, Open, StageTokens
from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.worker.stage import Opened, StagePorts
from omnistage_shout.reader import WordsToCome

Arrived = tuple[Receiver[Edge], Chunk[Edge]]


class Writer:
    """Says each word in capitals as soon as it comes, and ends as its model says."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._arrived: dict[str, asyncio.Queue[Arrived]] = defaultdict(asyncio.Queue)

    async def start(self) -> Ready:
        """Read the model; the option `repeat` is the graph file's."""
        self._ending = Checkpoint(self._ports.model).config["ending"]
        self._repeat = int(self._ports.options.get("repeat", 1))
        return Ready()

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """What the reader sent for a request that is being served; this must not wait."""
        self._arrived[chunk.request_id].put_nowait((receiver, chunk))

    async def serve(self, opened: Opened) -> None:
        """Answer with the words that come, then with the usage, which ends the answer."""
        assert isinstance(opened.message, Open)
        num_words = opened.message.read(WordsToCome).num_words
        try:
            async for word in self._words(opened.id):
                self._say(opened.id, word.upper())
        finally:
            self._arrived.pop(opened.id, None)
        self._say(opened.id, self._ending * self._repeat, "stop")
        usage = {"prompt_tokens": num_words, "completion_tokens": num_words + 1}
        usage["total_tokens"] = sum(usage.values())
        self._ports.send_output(opened.id, TextDelta({"choices": [], "usage": usage}), last=True)

    async def _words(self, request_id: str) -> AsyncIterator[str]:
        while True:
            receiver, chunk = await self._arrived[request_id].get()
            if isinstance(chunk.message, StageTokens):
                yield "".join(map(chr, chunk.tensors["tokens"].numpy()))
            receiver.grant(request_id)  # the chunk is done with: the reader may send another
            if chunk.last:
                return

    def _say(self, request_id: str, text: str, finish: str | None = None) -> None:
        self._ports.mark(request_id, "first_token")
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        self._ports.send_output(request_id, TextDelta({"choices": [choice]}))

    async def alive(self) -> None:
        """There is no engine to ask: whoever runs this is alive."""

    async def close(self) -> None:
        """There is nothing to give back."""
