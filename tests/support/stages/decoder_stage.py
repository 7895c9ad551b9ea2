"""The stage of a streaming decoder over real channels, with its upstream and its gateway."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt
from support.stages.heard import Heard

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.messages.edge import EDGE, Codes, Open
from omnistage.stages.messages.to_gateway import TO_GATEWAY, Ready
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.worker.stage import Opened, StagePorts

OPEN = Open(Request(None, ["text", "audio"]))


class StageHarness(Heard):
    """The stage, its upstream and its gateway."""

    def __init__(self, directory: Path, make_stage: Callable[[StagePorts], DecoderStage]) -> None:
        super().__init__()
        connector = make_connector("shm", directory, {})
        for address in ("talker.code2wav.rows", "code2wav.gateway"):
            connector.create(address)
        self.codes = connector.sender("talker.code2wav.rows")
        self.rows = connector.receiver("talker.code2wav.rows", EDGE)
        self.outputs = connector.sender("code2wav.gateway")
        self.gateway = connector.receiver("code2wav.gateway", TO_GATEWAY)
        self.ports = StagePorts("code2wav", "", {}, {}, self.outputs, source="talker")
        self.stage = make_stage(self.ports)
        self.serving: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> Ready:
        self.ready = await self.stage.start()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.rows.fileno(), self._drain)
        loop.add_reader(self.outputs.fileno(), self.ports.room.flush)
        loop.add_reader(self.codes.fileno(), self.codes.flush)
        loop.add_reader(self.gateway.fileno(), self.hear, self.gateway)
        return self.ready

    def _drain(self) -> None:
        while (chunk := self.rows.receive()) is not None:
            self.stage.receive(self.rows, chunk)

    async def open(self, *names: str) -> None:
        for name in names:
            self.serving[name] = asyncio.create_task(self.stage.serve(Opened(name, OPEN)))
        await asyncio.sleep(0)

    def send(self, name: str, codes: npt.NDArray[Any], last: bool = False) -> None:
        self.codes.send(Chunk(name, Codes(), 0, {"codes": Tensor.from_numpy(codes)}, last))

    def num_samples(self, name: str) -> int:
        return sum(chunk.tensors["pcm"].shape[0] for chunk in self.got[name])

    def has_frames(self, name: str, num: int) -> bool:
        """Whether so many frames of an open request are decoded."""
        return self.stage._num_frames[name] >= num

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for task in self.serving.values():
            task.cancel()
        await asyncio.gather(*self.serving.values(), return_exceptions=True)
        await self.stage.close()
        for end in (self.codes, self.rows, self.outputs, self.gateway):
            loop.remove_reader(end.fileno())
            end.close()
