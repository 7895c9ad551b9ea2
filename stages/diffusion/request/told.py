"""What a request tells while it is computed, at the pace at which its client reads."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.request.outputs import Picture
from omnistage.stages.worker.stage import StagePorts

Item = tuple[Mapping[str, Any], Picture | None]


class Told:
    """Steps and previews of one request; while its client does not read, steps replace each other.

    So no more waits than there are previews, and a step after each.
    """

    def __init__(self, ports: StagePorts, request_id: str, kind: str) -> None:
        self._ports = ports
        self._request_id = request_id
        self._kind = kind
        self._waiting: deque[Item] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False

    def put(self, meta: Mapping[str, Any], picture: Picture | None = None) -> None:
        """Send it as soon as there is room."""
        if self._is_over:
            return  # the request was cancelled: nobody waits
        if not self._waiting and self._ports.room.is_there(self._request_id):
            self._send(meta, picture)
            return
        if picture is None and self._waiting and self._waiting[-1][1] is None:
            self._waiting.pop()
        self._waiting.append((meta, picture))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            await self._ports.room.of(self._request_id)
            self._send(*self._waiting.popleft())

    async def finish(self, meta: Mapping[str, Any], pictures: list[Picture]) -> None:
        """All that waits, then the pictures, each once there is room for it."""
        if self._sending is not None:
            await self._sending
        for index, picture in enumerate(pictures):
            await self._ports.room.of(self._request_id)
            last = index == len(pictures) - 1
            self._send({"index": index, **meta}, picture, last)

    def _send(self, meta: Mapping[str, Any], picture: Picture | None, last: bool = False) -> None:
        tensors = {} if picture is None else {"pixels": Tensor.from_numpy(picture)}
        self._ports.send_output(self._request_id, self._kind, meta, tensors, last)

    def close(self) -> None:
        """Nothing more is told."""
        self._is_over = True
        if self._sending is not None:
            self._sending.cancel()

    @property
    def num_waiting(self) -> int:
        """Steps and previews that wait for room."""
        return len(self._waiting)
