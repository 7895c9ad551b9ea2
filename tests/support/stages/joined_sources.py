"""Sources of a stage that joins several, driven piece by piece."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.addresses import feed_address, opens_address, rows_address
from omnistage.stages.messages.edge import NothingToSay, Open, ReleasedWords
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    TO_GATEWAY,
    Marks,
    Ready,
    Status,
    ToGateway,
)
from omnistage.stages.messages.to_stage import Cancel, Request, Stop
from omnistage.stages.worker.stage_worker import StageWorker

SOURCES = ("b", "c")
GRAPH = {
    "stages": {name: {"kind": f"test.{name}"} for name in ("a", "b", "c", "d")},
    "edges": [
        {"from": "a", "to": "b"},
        {"from": "a", "to": "c"},
        {"from": "b", "to": "d"},
        {"from": "c", "to": "d"},
    ],
    "outputs": {"text": "d"},
    "deadlines": {"first_chunk_s": 0.5},
}
REQUEST = Request(None, ["text"], ["a", "b", "c", "d"])
Say = str | None  # a piece of text; None: the source has nothing to say


class Source:
    """One stage upstream: its ends of the edge, which it opens again after it has died."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._connector = make_connector("shm", directory, {"credit": 0})
        self._rows = make_connector("shm", directory, {})
        for connector, address in self._channels:
            connector.create(address)
        self._connect()

    @property
    def _channels(self) -> list[tuple[Any, str]]:
        ends = self._name, "d"
        return [
            (self._connector, opens_address(*ends)),
            (self._connector, feed_address(*ends)),
            (self._rows, rows_address(*ends)),
        ]

    def _connect(self) -> None:
        (_, opens), (_, feed), _ = self._channels
        self._open = self._connector.sender(opens)
        self._feed = self._connector.sender(feed)

    def open(self, request_id: str) -> None:
        self._open.send(Chunk(request_id, Open(REQUEST), last=True))

    def say(self, request_id: str, said: Say, last: bool) -> None:
        if said is None:
            self._open.send(Chunk(request_id, NothingToSay(), last=True))
        else:
            self._feed.send(Chunk(request_id, ReleasedWords(said), last=last))

    def die(self) -> None:
        """As the supervisor does it: what was on its way is lost, and the ends are opened anew."""
        self.close()
        for connector, address in self._channels:
            connector.renew(address)
        self._connect()

    def close(self) -> None:
        self._open.close()
        self._feed.close()


class Play:
    """The gateway and both sources of a worker, in one event loop with it."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        connector = make_connector("shm", directory, {})
        for address in ("gateway.d", "d.gateway"):
            connector.create(address)
        self.requests = connector.sender("gateway.d")
        self.outputs = connector.receiver("d.gateway", TO_GATEWAY)
        self.sources = {name: Source(name, directory) for name in SOURCES}
        self.got: list[Chunk[ToGateway]] = []
        self.ids = map(str, count())
        self.worker = StageWorker(StageGraph.model_validate(GRAPH), "d", directory)
        self.running = self.loop.create_task(self.worker.run())
        self.loop.run_until_complete(self.until(lambda: bool(self.of_itself(Ready))))

    def look(self) -> None:
        while (chunk := self.outputs.receive()) is not None:
            self.outputs.grant(chunk.request_id)
            self.got.append(chunk)

    def of_itself(self, kind: type) -> list[Any]:
        self.look()
        return [
            chunk.message
            for chunk in self.got
            if chunk.request_id == ABOUT_ITSELF and isinstance(chunk.message, kind)
        ]

    def of(self, request_id: str) -> list[ToGateway]:
        self.look()
        return [
            chunk.message
            for chunk in self.got
            if chunk.request_id == request_id and not isinstance(chunk.message, Marks)
        ]

    def cancel(self, request_id: str) -> None:
        self.requests.send(Chunk(request_id, Cancel(), last=True))

    def is_idle(self) -> bool:
        status = self.of_itself(Status)[-1]
        return status.running == 0 and not any(status.held.values())

    async def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 600
        while not holds():
            await asyncio.sleep(0.0005)
            assert time.monotonic() < end, self.of_itself(Status)[-1]

    def close(self) -> None:
        self.requests.send(Chunk(ABOUT_ITSELF, Stop(), last=True))
        self.loop.run_until_complete(asyncio.wait_for(self.running, 600))
        self.requests.close()
        self.outputs.close()
        for source in self.sources.values():
            source.close()
        self.loop.close()
