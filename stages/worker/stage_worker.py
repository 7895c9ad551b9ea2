"""The process of one stage: opens its channels, runs one task a request, tells the gateway.

Requests come from the gateway (an entry stage) or from the stages upstream, cancels from the
gateway. Every failure of a request is one `error` output that names this stage.
"""

import asyncio
import logging
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import msgspec

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.edge import Edge as EdgeMessage
from omnistage.stages.messages.edge import NothingToSay, Open, Waits
from omnistage.stages.messages.loading import end_loading
from omnistage.stages.messages.to_stage import (
    Cancel,
    Command,
    MediumPiece,
    MoreText,
    Request,
    Stop,
    ToStage,
)
from omnistage.stages.worker.commands import Commands
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Ledgers
from omnistage.stages.worker.process.download import download_told
from omnistage.stages.worker.process.engine_processes import (
    EngineProcesses,
    end_with,
    leave_if_engine_died,
)
from omnistage.stages.worker.process.garbage import end_imports
from omnistage.stages.worker.reports import Reports, Work
from omnistage.stages.worker.requests.joining import Joining
from omnistage.stages.worker.requests.watch import overdue
from omnistage.stages.worker.stage import (
    FollowsUpstream,
    Opened,
    ReadsFeed,
    Stage,
    StagePorts,
    TakesText,
)
from omnistage.stages.worker.start_error import start_failure_told
from omnistage.stages.worker.wiring import wire

logger = logging.getLogger("omnistage.stage")

MAX_CANCELLED = 4096


class StageWorker:
    """One stage's tasks and channels."""

    def __init__(self, graph: StageGraph, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._wiring = wire(graph, name, directory)
        self._ports = self._wiring.ports
        self._outputs = self._ports.outputs
        self._work = Work()
        self._joining: dict[str, Joining] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self._stopping = asyncio.Event()
        self._gpus = visible_gpus()[: len(graph.replicas[name].gpus) or 1]
        ledger = Ledgers(Path(self._ports.ledger), self._ports.num_lanes)
        ledger.clear()  # the generation before us may have died with full hands
        with start_failure_told(directory, name):
            made: Callable[[StagePorts], Stage] = resolve_name(KINDS[graph.spec_of(name).kind].path)
            end_imports()
            self._stage = made(self._ports)
        self._commands = Commands(self._stage, name, self._outputs, graph.deadlines.command_s)
        self._reports = Reports(self._wiring, self._stage, self._commands, self._work, ledger)

    # Life

    async def run(self) -> None:
        """Load, serve until told to stop, close."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with start_failure_told(self._directory, self._name), download_told(self._ports.model):
            ready = await self._stage.start()
        end_loading()
        self._wiring.listen(self._drain)
        self._drain()
        self._ports.standstills.start()
        self._reports.tell(msgspec.structs.replace(ready, seconds=time.monotonic() - started))
        watched = EngineProcesses(end_with)
        reporting = self._reports.report(), self._reports.live()
        telling = [asyncio.create_task(one) for one in reporting]
        snapshots = self._reports.snapshots(self._gpus)
        snapshots.start()
        try:
            await self._stopping.wait()
        finally:
            self._ports.standstills.stop()
            watched.close()
            tasks = [*telling, *self._work.tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(snapshots.close)
            await self._commands.close()
            await self._stage.close()
            self._wiring.close()
            self._reports.close()

    # Chunks

    def _drain(self) -> None:
        """Take what has arrived: first what opens requests, then what feeds them."""
        while (chunk := self._wiring.requests.receive()) is not None:
            self._wiring.requests.grant(chunk.request_id)
            self._obey(chunk)
        self._drain_opens()
        for receiver in self._wiring.feeds:
            while (fed := receiver.receive()) is not None:
                self._work.num_chunks_in += 1
                if fed.request_id not in self._work.tasks:
                    self._drain_opens()
                if fed.request_id in self._work.tasks:
                    self._feed(receiver, fed)
                else:
                    receiver.forget(fed.request_id)

    def _feed(self, receiver: Receiver[EdgeMessage], chunk: Chunk[EdgeMessage]) -> None:
        """A chunk that the stage cannot take fails its request, not the chunks after it."""
        if not isinstance(self._stage, ReadsFeed):
            receiver.forget(chunk.request_id)
            return
        joining = self._joining.get(chunk.request_id)
        if joining is not None:
            joining.put_off(partial(self._feed, receiver, chunk.owned()))
            return
        try:
            self._stage.receive(receiver, chunk)
        except Exception:
            logger.exception("a chunk of request %s was refused", chunk.request_id)
            self._send_failure(chunk.request_id)
            self._cancel(chunk.request_id)

    def _drain_opens(self) -> None:
        for receiver, source in self._wiring.opens.items():
            while (chunk := receiver.receive()) is not None:
                receiver.grant(chunk.request_id)
                self._follow(source, chunk)

    def _obey(self, chunk: Chunk[ToStage]) -> None:
        """Executes a message of the gateway."""
        message = chunk.message
        if isinstance(message, Request):
            self._work.num_chunks_in += 1
            media = self._work.media.take(chunk.request_id)
            self._open(Opened(chunk.request_id, message, chunk.tensors, media=media))
        elif isinstance(message, MediumPiece):
            self._work.media.add(chunk.request_id, message, chunk.tensors["data"])
        elif isinstance(message, MoreText):
            self._add_text(chunk.request_id, message.text, chunk.last)
        elif isinstance(message, Cancel):
            self._cancel(chunk.request_id)
        elif isinstance(message, Command):
            self._commands.begin(chunk.request_id, message)
        elif isinstance(message, Stop):
            self._stopping.set()

    def _add_text(self, request_id: str, text: str, last: bool) -> None:
        """Adds text to a request that is served; its task has begun when the stage is told."""
        if isinstance(self._stage, TakesText) and request_id in self._work.tasks:
            self._work.num_chunks_in += 1
            tell = self._stage.more_text
            asyncio.get_running_loop().call_soon(tell, request_id, text, last)

    def _follow(self, source: str, chunk: Chunk[EdgeMessage]) -> None:
        """Handles a message of a stage upstream."""
        message = chunk.message
        self._work.num_chunks_in += 1
        if isinstance(message, Open):
            self._announce(source, Opened(chunk.request_id, message, chunk.tensors))
        elif isinstance(self._stage, FollowsUpstream) and chunk.request_id in self._work.tasks:
            if isinstance(message, NothingToSay):
                self._tell_stage(chunk.request_id, source, self._stage.nothing_to_say)
            elif isinstance(message, Waits):
                self._tell_stage(chunk.request_id, source, self._stage.upstream_waits)

    def _tell_stage(self, request_id: str, source: str, tell: Callable[[str, str], None]) -> None:
        """Not before the request's task has begun."""
        joining = self._joining.get(request_id)
        if joining is not None:
            joining.put_off(partial(tell, request_id, source))
        else:
            asyncio.get_running_loop().call_soon(tell, request_id, source)

    def _announce(self, source: str, opened: Opened) -> None:
        sources = list(dict.fromkeys(self._wiring.opens.values()))
        if len(sources) == 1:
            self._open(opened)
            return
        joining = self._joining.get(opened.id)
        if joining is None:
            if opened.id in self._cancelled:
                return
            joining = self._joining[opened.id] = Joining(sources)
            self._begin(opened.id, self._join(opened.id, joining))
        joining.add(source, opened)

    def _open(self, opened: Opened) -> None:
        if opened.id not in self._cancelled:
            self._begin(opened.id, self._serve(opened))

    def _begin(self, request_id: str, serving: Coroutine[object, object, None]) -> None:
        self._work.num_requests += 1
        self._reports.opened.inc()
        task = asyncio.get_running_loop().create_task(serving)
        self._work.tasks[request_id] = task
        task.add_done_callback(partial(self._clean_up, request_id))
        self._work.changed.set()

    async def _join(self, request_id: str, joining: Joining) -> None:
        """Serve a request once every edge to us has announced it."""
        try:
            opened = await joining.opened(self._ports.watch())
        except TimeoutError:
            error = overdue(joining.missing[0], self._name)
            self._ports.send_failure(request_id, error.told_by(self._name))
            return
        asyncio.get_running_loop().call_soon(self._deliver, request_id)
        await self._serve(opened)

    def _deliver(self, request_id: str) -> None:
        """Replays what arrived before the request's task began."""
        joining = self._joining.pop(request_id, None)
        if joining is not None:
            joining.deliver()

    def _clean_up(self, request_id: str, task: asyncio.Task[None]) -> None:
        """Runs for every task: one that is cancelled at once never runs itself."""
        del self._work.tasks[request_id]
        self._joining.pop(request_id, None)
        if self._ports.end_marks(request_id):
            self._outputs.forget(request_id)  # no last output closes it
        if task.cancelled():
            self._wiring.forget(request_id)
        elif self._ports.own_feed is not None:  # an engine may end before its text has
            self._ports.own_feed.forget(request_id)
        for receiver in self._wiring.feeds:
            receiver.forget(request_id)
        self._work.changed.set()

    def _cancel(self, request_id: str) -> None:
        self._work.media.take(request_id)
        self._cancelled[request_id] = None
        while len(self._cancelled) > MAX_CANCELLED:
            self._cancelled.popitem(last=False)
        if request_id in self._work.tasks:
            self._work.tasks[request_id].cancel()
        else:
            self._wiring.forget(request_id)  # it failed before it had sent its last

    async def _serve(self, opened: Opened) -> None:
        self._ports.begin_marks(opened.id)
        began_at = time.monotonic()
        try:
            await self._stage.serve(opened)
            self._tell_finished(opened.id)
        except RequestError as error:
            leave_if_engine_died(self._stage, self._name)
            self._ports.send_failure(opened.id, error.told_by(self._name))
        except Exception:
            leave_if_engine_died(self._stage, self._name)
            logger.exception("request %s failed in stage %s", opened.id, self._name)
            self._send_failure(opened.id)
        finally:
            self._reports.served_s.observe(time.monotonic() - began_at)

    def _tell_finished(self, request_id: str) -> None:
        """Reports the end of a request that gets no output here; elsewhere the last one does."""
        if request_id in self._ports.marked:
            self._ports.mark(request_id, "finished")
            self._ports.send_marks(request_id)

    def _send_failure(self, request_id: str) -> None:
        error = RequestError(500, f"Stage {self._name} failed; its log says why.")
        self._ports.send_failure(request_id, error.told_by(self._name))
