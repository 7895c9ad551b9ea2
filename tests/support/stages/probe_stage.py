"""A stage that keeps the rows of an edge, as they came; its answer is a sample of silence."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.edge import Edge, Rows
from omnistage.stages.messages.to_gateway import Ready, Sound
from omnistage.stages.worker.stage import Opened, StagePorts


class Kept:
    """What has come of one request."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.prompt: list[int] = tensors["prompt"].numpy().tolist()
        self.positions: list[int] = []
        self.parts: list[torch.Tensor] = []
        self.is_whole = asyncio.Event()

    def add(self, chunk: Chunk[Edge]) -> None:
        """Rows, or nothing but the end of them."""
        assert isinstance(chunk.message, Rows)
        if chunk.tensors:
            self.positions += chunk.tensors["positions"].numpy().tolist()
            self.parts.append(torch.from_numpy(chunk.tensors["hidden"].numpy().copy()))
        if chunk.last:
            self.is_whole.set()

    @property
    def rows(self) -> torch.Tensor:
        """All of them, in the order in which they came."""
        return torch.cat(self.parts)


class Probe:
    """Each request by its id, with all that came for it."""

    kept: ClassVar[dict[str, Kept]] = {}

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        """Nothing to load."""
        return Ready(sample_rate_hz=24_000)

    async def serve(self, opened: Opened) -> None:
        """Answer when the last row has come."""
        kept = self.kept[opened.id] = Kept(opened.tensors)
        await kept.is_whole.wait()
        pcm: dict[str, Any] = {"pcm": Tensor.from_numpy(np.zeros(1, np.int16))}
        self._ports.send_output(opened.id, Sound(1), pcm, last=True)

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """Rows may come before their request's task has begun."""
        asyncio.get_running_loop().call_soon(self._keep, receiver, chunk)

    def _keep(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        receiver.grant(chunk.request_id)
        self.kept[chunk.request_id].add(chunk)

    async def alive(self) -> None:
        """It never hangs."""

    async def close(self) -> None:
        """It has nothing."""
