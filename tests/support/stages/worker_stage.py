"""A stage for tests of the worker's own behaviour: what it does is named by the request."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.registry import Collector
from support.api.bodies import given_text

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.edge import Edge, Open, ReleasedWords
from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Held, Ledger
from omnistage.stages.worker.requests.coming_text import ComingTexts
from omnistage.stages.worker.requests.own_feed import OwnFeed
from omnistage.stages.worker.stage import Opened, StagePorts

ENGINE_S = 0.1


class ScriptedStage:
    """Hangs, refuses, fails or answers; it shows no life while a command hangs."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._is_free = asyncio.Event()
        self._is_free.set()

    async def start(self) -> Ready:
        return Ready()

    async def serve(self, opened: Opened) -> None:
        request_id, script = opened.id, opened.request.fields["script"]
        if script == "hang":
            await asyncio.Event().wait()
        if script == "engine":  # it holds something a little longer than its request lasts
            engine = Ledger(Path(self._ports.ledger))
            engine.write(Held.STREAMS, 1)
            asyncio.get_running_loop().call_later(ENGINE_S, engine.write, Held.STREAMS, 0)
        if script == "endless":
            await self._flood(request_id)
        if script == "media":
            heard = {str(kind): one.data().tolist() for (_, kind), one in opened.media.items()}
            self._ports.send_output(request_id, TextDelta(heard))
        if script == "two words":
            self._ports.mark(request_id, "spoke")
            self._ports.send_output(request_id, TextDelta({"said": "two"}))
        if script == "refuse":
            raise RequestError(400, "no", param="x")
        if script == "fail":
            raise RuntimeError("broken")
        self._ports.send_output(request_id, TextDelta({"said": script}), last=True)

    async def _flood(self, request_id: str) -> None:
        while True:
            await asyncio.sleep(0)  # as an engine's outputs take a while
            await self._ports.room.wait(request_id)
            self._ports.send_output(request_id, TextDelta({"said": "x"}))

    async def control(self, command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if command == "hang":
            self._is_free.clear()
            await asyncio.Event().wait()
        if command == "refuse":
            raise RequestError(409, "not now", param="x", code="busy")
        if command == "fail":
            raise RuntimeError("broken")
        return {"did": command, **arguments}

    async def alive(self) -> None:
        await self._is_free.wait()

    async def close(self) -> None:
        return


class StageWhoseMetricsHang(ScriptedStage):
    """Its collector waits, until the stage is closed."""

    @property
    def metrics(self) -> Collector:
        self._is_closed = threading.Event()
        return Hanging(self._is_closed)

    async def close(self) -> None:
        self._is_closed.set()


class Hanging(Collector):
    """Cannot be collected before it is freed."""

    def __init__(self, is_free: threading.Event) -> None:
        self._is_free = is_free

    def collect(self) -> Iterator[Metric]:
        self._is_free.wait()
        return iter(())


class StageWithoutCommands:
    """Loads, and that is all."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        return Ready()

    async def serve(self, opened: Opened) -> None:
        return

    async def alive(self) -> None:
        return

    async def close(self) -> None:
        return


class StageWithoutOutputs(StageWithoutCommands):
    """It has something to tell of a request, and nothing for its client."""

    async def serve(self, opened: Opened) -> None:
        self._ports.mark(opened.id, "heard")
        self._ports.send_marks(opened.id)


class StageThatDoesNotFit(StageWithoutCommands):
    """Its start is refused."""

    async def start(self) -> Ready:
        raise ValueError("stage one does not fit")


class MisconfiguredStage(StageWithoutCommands):
    """It is refused before its start."""

    def __init__(self, ports: StagePorts) -> None:
        raise ValueError("unknown engine argument")


class JoiningStage(StageWithoutCommands):
    """Answers with what each stage upstream wrote, once all of them have ended."""

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports)
        self._written: dict[str, dict[str, str]] = {}
        self._open: dict[str, set[str]] = {}
        self._ended: dict[str, asyncio.Event] = {}

    async def serve(self, opened: Opened) -> None:
        request_id = opened.id
        assert all(one.id == request_id for one in opened.opens.values())
        self._written[request_id] = dict.fromkeys(opened.opens, "")
        self._open[request_id] = set(opened.opens)
        self._ended[request_id] = asyncio.Event()
        try:
            await self._ended[request_id].wait()
            written = TextDelta({**self._written[request_id]})
            self._ports.send_output(request_id, written, last=True)
        finally:
            for known in (self._written, self._open, self._ended):
                known.pop(request_id)

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        receiver.grant(chunk.request_id)
        if chunk.request_id not in self._open:
            asyncio.get_running_loop().call_soon(self._add, receiver, chunk)
        else:
            self._add(receiver, chunk)

    def _add(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        source, message = self._ports.upstream[receiver], chunk.message
        if chunk.request_id in self._open:
            assert isinstance(message, ReleasedWords)
            self._written[chunk.request_id][source] += message.text
            if chunk.last:
                self._end(chunk.request_id, source)

    def nothing_to_say(self, request_id: str, source: str) -> None:
        self._end(request_id, source)

    def upstream_waits(self, request_id: str, source: str) -> None:
        return

    def _end(self, request_id: str, source: str) -> None:
        if request_id in self._open:
            self._open[request_id].discard(source)
            if not self._open[request_id]:
                self._ended[request_id].set()


class WritingStage(StageWithoutCommands):
    """Writes its name along each edge that a request goes along."""

    async def serve(self, opened: Opened) -> None:
        for edge in self._ports.live(opened.request):
            edge.open.send(Chunk(opened.id, Open(opened.request), last=True))
            edge.feed.send(Chunk(opened.id, ReleasedWords(self._ports.name), last=True))


class StageThatFailsHalfWay(StageWithoutCommands):
    """Sends a piece along its edge, and breaks before the last."""

    async def serve(self, opened: Opened) -> None:
        (edge,) = self._ports.downstream
        for number in range(2):
            edge.feed.send(Chunk(opened.id, ReleasedWords("half of a"), number))
        raise RuntimeError("broken")


class ToyEngine:
    """Reads a feed in a thread of its own, and tells what it has read of each request."""

    def __init__(self, receiver: Receiver[Edge], tell: Callable[[str, list[int], bool], None]):
        self._receiver = receiver
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._receiver.wait(0.01)
            while (chunk := self._receiver.receive()) is not None:
                self._receiver.grant(chunk.request_id)
                has_tokens = "tokens" in chunk.tensors
                ids = chunk.tensors["tokens"].numpy().tolist() if has_tokens else []
                told = (chunk.request_id, ids, chunk.last)
                self._loop.call_soon_threadsafe(self._tell, *told)

    def close(self) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._receiver.close()


class StageThatFeedsItself(StageWithoutCommands):
    """Feeds its engine the bytes of a text as it comes; each answer is what the engine has read."""

    async def start(self) -> Ready:
        self._texts = ComingTexts()
        self._ended: dict[str, asyncio.Event] = {}
        self._engine = ToyEngine(self._ports.feeds[-1].receiver(), self._tell)
        return Ready()

    def more_text(self, request_id: str, text: str, last: bool) -> None:
        self._texts.add(request_id, text, last)

    async def serve(self, opened: Opened) -> None:
        assert self._ports.own_feed is not None
        text = self._texts.open(opened.id, given_text(opened.request))
        ended = self._ended[opened.id] = asyncio.Event()
        feed = OwnFeed(self._ports.own_feed, opened.id)
        try:
            async for piece in text.pieces(0.05, feed.show_life):
                feed.send(list(piece.encode()))
                if piece == "enough":
                    return
            feed.send([], last=True)
            await ended.wait()
        finally:
            self._texts.close(opened.id)
            self._ended.pop(opened.id)

    def _tell(self, request_id: str, token_ids: list[int], last: bool) -> None:
        if request_id in self._ended:
            self._ports.send_output(request_id, TextDelta({"read": token_ids}), last=last)
            if last:
                self._ended[request_id].set()

    async def close(self) -> None:
        self._engine.close()


class StageWhoseEngineDies(StageWithoutCommands):
    """Its engine dies of the first request, and says so before its processes have ended."""

    is_dead = False

    async def serve(self, opened: Opened) -> None:
        self.is_dead = True
        raise RuntimeError("the engine is dead")


class StageThatDiesIdle(StageWithoutCommands):
    """Its engine has died before anybody asks."""

    is_dead = True
