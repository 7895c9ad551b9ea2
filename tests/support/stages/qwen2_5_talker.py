"""A talker of Qwen2.5-Omni in an engine, fed by hand."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
from support.oracles.spoken_rows import Spoken

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stages.messages.edge import (
    Edge,
    Open,
    Rows,
    RowsReleased,
    described,
)
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.stage import Opened

PATH = ["thinker", "talker", "token2wav"]
SPEAKER = "Ethan"
NUM_CODES = 60
GREEDY = {"temperature": 0, "max_tokens": NUM_CODES}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 64 << 20,
    "max_logprobs": -1,
}
ENDS = ("outputs", "open", "feed", "codes", "released", "rows")


def rows_chunk(name: str, spoken: Spoken, sources: Sequence[int]) -> Chunk[Edge]:
    tensors = {
        "hidden": Tensor.from_numpy(spoken.rows[list(sources)]),
        "positions": Tensor.from_numpy(np.array(sources, np.int32)),
    }
    return Chunk(name, Rows(), sources[0], tensors)


class Harness:
    """A talker stage, the thinker's ends of its edge and token2wav's of the next."""

    def __init__(self, stage: Any, ends: dict[str, Any], ledger: Ledger) -> None:
        self.stage = stage
        self.feed: Sender = ends["released"]
        self.rows: Sender = ends["rows"]
        self.codes_from: Receiver[Edge] = ends["codes"]
        self.opens: Receiver[Edge] = ends["open"]
        self.ledger = ledger
        self.got: dict[str, list[int]] = {}
        self.done: set[str] = set()

    def opened(self, name: str, spoken: Spoken, **request: Any) -> Opened:
        """As the stage's worker gives it to the stage."""
        options = {"stage_params": {"talker": GREEDY}, "speaker": SPEAKER, **request}
        asked = Request(None, ["text", "audio"], PATH, **options)
        message = Open(asked, described(ThinkerPrompt(list(spoken.grids))))
        prompt = Tensor.from_numpy(np.zeros(spoken.num_prompt, np.int32))
        return Opened(name, message, {"prompt": prompt})

    async def speak(self, name: str, spoken: Spoken, *sending: Awaitable[None]) -> list[int]:
        """The codes that left, each to its last chunk, while these send."""
        await asyncio.gather(self.stage.serve(self.opened(name, spoken)), *sending)
        return await self.codes(name)

    async def codes(self, name: str) -> list[int]:
        async with asyncio.timeout(600):
            while name not in self.done:
                self._take()
                await asyncio.sleep(0.002)
        return self.got.pop(name)

    def _take(self) -> None:
        while (chunk := self.codes_from.receive()) is not None:
            self.codes_from.grant(chunk.request_id)
            got = self.got.setdefault(chunk.request_id, [])
            if "codes" in chunk.tensors:
                codes = chunk.tensors["codes"].numpy()
                assert (codes.dtype, codes.shape[1:]) == (np.int32, (1,))
                got += codes[:, 0].tolist()
            if chunk.last:
                self.done.add(chunk.request_id)

    def release(self, name: str, num_rows: int, last: bool = False) -> None:
        self.feed.send(Chunk(name, RowsReleased(num_rows), last=last))

    async def send_whole(self, name: str, spoken: Spoken) -> None:
        """All at once, and a row that is not released."""
        num_rows = len(spoken.rows)
        self.rows.send(rows_chunk(name, spoken, range(num_rows)))
        self.rows.send(rows_chunk(name, spoken, [num_rows - 1]))
        self.release(name, num_rows, last=True)

    async def send_one_by_one(self, name: str, spoken: Spoken, lag_s: float = 0.0) -> None:
        """The prompt in pieces, then a row a step, each released when it comes."""
        for first in range(0, spoken.num_prompt, 9):
            until_ = min(first + 9, spoken.num_prompt)
            self.rows.send(rows_chunk(name, spoken, range(first, until_)))
            await asyncio.sleep(lag_s)
        for row in range(spoken.num_prompt, len(spoken.rows)):
            self.rows.send(rows_chunk(name, spoken, [row]))
            await asyncio.sleep(lag_s)
            self.release(name, row + 1)
            await asyncio.sleep(lag_s)
        self.release(name, len(spoken.rows), last=True)

    async def send_again(self, name: str, spoken: Spoken) -> None:
        """A thinker that was preempted in the middle, and releases late."""
        middle = spoken.num_prompt + 3
        self.rows.send(rows_chunk(name, spoken, range(middle)))
        await asyncio.sleep(0.05)
        self.rows.send(rows_chunk(name, spoken, range(middle + 2)))
        self.release(name, middle)
        await asyncio.sleep(0.05)
        self.rows.send(rows_chunk(name, spoken, range(middle + 2, len(spoken.rows))))
        await asyncio.sleep(0.05)
        self.release(name, len(spoken.rows), last=True)

    def held(self) -> dict[str, int]:
        """What the engine holds, by its ledger."""
        return {what: count for what, count in self.ledger.read().items() if count}
