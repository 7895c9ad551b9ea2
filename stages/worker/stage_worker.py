"""The process of one stage: opens its channels, runs one task a request, tells the gateway.

Requests come from the gateway (an entry stage) or from the stages upstream, cancels from the
gateway. Every failure of a request is one `error` output that names this stage.
"""

import asyncio
import importlib
import logging
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.options import Option
from omnistage.connectors.segments import ENDING, PLACE, remove_segments
from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.gpus import gpu_environment, visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.replicas import stage_of
from omnistage.stage_configs.rules.parallel import num_lanes
from omnistage.stages.messages.addresses import (
    feed_address,
    opens_address,
    outputs_address,
    requests_address,
    rows_address,
)
from omnistage.stages.messages.edge import Edge as EdgeMessage
from omnistage.stages.messages.edge import NothingToSay, Open, Waits
from omnistage.stages.messages.families import SECONDS
from omnistage.stages.messages.loading import begin_loading, end_loading
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Alive, Compiling, Ready, Status
from omnistage.stages.messages.to_stage import (
    TO_STAGE,
    Cancel,
    Command,
    MediumPiece,
    MoreText,
    Request,
    Stop,
    ToStage,
)
from omnistage.stages.worker.coming_media import ComingMedia
from omnistage.stages.worker.commands import Commands
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.joining import Joining
from omnistage.stages.worker.ledger import Ledgers
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.process.compiles import begin_counting
from omnistage.stages.worker.process.download import download_told
from omnistage.stages.worker.process.engine_processes import EngineProcesses
from omnistage.stages.worker.process.garbage import end_imports
from omnistage.stages.worker.process.gpu_metrics import GpuMetrics
from omnistage.stages.worker.signs import send_signs
from omnistage.stages.worker.snapshots import Snapshots
from omnistage.stages.worker.stage import (
    Downstream,
    FollowsUpstream,
    HasEngine,
    HasMetrics,
    Opened,
    ReadsFeed,
    Stage,
    StagePorts,
    TakesText,
    TellsProgress,
)
from omnistage.stages.worker.start_error import start_failure_told
from omnistage.stages.worker.watch import overdue

logger = logging.getLogger("omnistage.stage")

STATUS_INTERVAL_S = 1.0
SETTLING_S = 0.02  # after a request's end, until what its engine holds is looked at again
MAX_CANCELLED = 4096
OWN_FEED_CONNECTOR = "shm"
ENGINE_DIED = 70  # our exit code


class StageWorker:
    """One stage's tasks and channels."""

    def __init__(self, graph: StageGraph, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        gateway = make_connector("shm", directory, {})
        self._requests = gateway.receiver(requests_address(name), TO_STAGE)
        self._outputs = gateway.sender(outputs_address(name))
        self._opens: dict[Receiver[EdgeMessage], str] = {}  # each with the stage that it is from
        self._feeds: dict[Receiver[EdgeMessage], str] = {}
        self._joining: dict[str, Joining] = {}
        self._media = ComingMedia()
        self._senders: list[Sender] = [self._outputs]
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self._num_requests = 0
        self._num_chunks_in = 0
        self._has_told_nan = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._ports = self._make_ports(graph)
        self._has_outputs = stage_of(name) in graph.outputs.values()
        self._gpus = visible_gpus()[: len(graph.replicas[name].gpus) or 1]
        self._ledger = Ledgers(Path(self._ports.ledger), self._ports.num_lanes)
        self._ledger.clear()  # the generation before us may have died with full hands
        module, _, class_name = KINDS[graph.spec_of(name).kind].path.partition(":")
        with start_failure_told(directory, name):
            made: Callable[[StagePorts], Stage] = getattr(
                importlib.import_module(module), class_name
            )
            end_imports()
            stage = made(self._ports)
        self._stage = stage
        limit_s = graph.deadlines.command_s
        self._commands = Commands(self._stage, name, self._outputs, limit_s)
        self._make_metrics()

    # Metrics

    def _make_metrics(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._opened = Counter(
            "omnistage_stage_requests", "Requests that a stage began.", registry=self._registry
        )
        self._served_s = Histogram(
            "omnistage_stage_request_seconds",
            "From a request's arrival in a stage to its end there, however it ended.",
            registry=self._registry,
            buckets=SECONDS,
        )

    def _snapshots(self) -> Snapshots:
        """Returns the snapshots of this process, its GPUs and its stage, which has started."""
        collectors: list[Collector] = [self._registry, GpuMetrics(self._gpus)]
        if isinstance(self._stage, HasMetrics):
            collectors.append(self._stage.metrics)
        return Snapshots(self._name, collectors, self._outputs)

    # Channels

    def _make_ports(self, graph: StageGraph) -> StagePorts:
        spec = graph.spec_of(self._name)
        model = graph.model_of(spec.name)
        ports = StagePorts(self._name, model, spec.engine, spec.options, self._outputs)
        ports.deadlines = graph.deadlines
        ports.ledger = str(self._directory / f"{self._name}.held")
        ports.num_lanes = num_lanes(spec.engine)
        for edge, source in graph.sources_of(self._name):
            ends = source, self._name
            ports.source = edge.source
            ports.source_kind = graph.stages[edge.source].kind
            ports.takes |= graph.carried(edge)
            self._opens[self._port(edge, opens_address(*ends)).receiver()] = edge.source
            sources = num_lanes(graph.stages[edge.source].engine)
            feed = self._port(edge, feed_address(*ends), targets=ports.num_lanes)
            rows = self._rows_port(edge, ends, sources, ports.num_lanes)
            if KINDS[spec.kind].engine_takes_feed:
                ports.feeds += [feed, rows]
            else:
                receivers = [*feed.receivers(), *rows.receivers()]
                self._feeds |= dict.fromkeys(receivers, edge.source)
        ports.upstream = self._feeds
        if KINDS[spec.kind].feeds_itself:
            address = feed_address(self._name, self._name)
            place = str(self._directory)
            options: dict[str, Option] = {"credit": 0}
            port = Port(address, OWN_FEED_CONNECTOR, place, options, targets=ports.num_lanes)
            ports.feeds.append(port)
            ports.own_feed = port.sender()
            self._senders.append(ports.own_feed)
        for edge, target in graph.targets_of(self._name):
            ends = self._name, target
            targets = num_lanes(graph.spec_of(target).engine)
            downstream = Downstream(
                target=target,
                carries=graph.carried(edge),
                open=self._port(edge, opens_address(*ends)).sender(),
                feed=self._port(edge, feed_address(*ends), targets=targets).sender(),
                rows=self._rows_port(edge, ends, ports.num_lanes, targets),
                chunk_sizes=edge.chunk_sizes,
                all_hidden_states=edge.hidden_states == "all",
            )
            ports.downstream.append(downstream)
            self._senders += [downstream.open, downstream.feed]
        return ports

    def _port(self, edge: Edge, address: str, targets: int = 1) -> Port:
        """Returns the port of a channel without credit."""
        options = {**edge.connector.options, "credit": 0}
        return Port(address, edge.connector.name, str(self._directory), options, targets=targets)

    def _rows_port(self, edge: Edge, ends: tuple[str, str], sources: int, targets: int) -> Port:
        address, options = rows_address(*ends), dict(edge.connector.options)
        place = str(self._directory)
        return Port(address, edge.connector.name, place, options, sources, targets)

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
        for receiver in (self._requests, *self._opens, *self._feeds):
            loop.add_reader(receiver.fileno(), self._drain)
        for sender in self._senders:
            flush = self._ports.room.flush if sender is self._outputs else sender.flush
            loop.add_reader(sender.fileno(), flush)
        self._drain()
        self._ports.standstills.start()
        self._tell(msgspec.structs.replace(ready, seconds=time.monotonic() - started))
        watched = EngineProcesses(_end_with)
        telling = [asyncio.create_task(self._report()), asyncio.create_task(self._live())]
        snapshots = self._snapshots()
        snapshots.start()
        try:
            await self._stopping.wait()
        finally:
            self._ports.standstills.stop()
            watched.close()
            tasks = [*telling, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(snapshots.close)
            await self._commands.close()
            await self._stage.close()
            self._close()

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        for end in self._ends:
            loop.remove_reader(end.fileno())
            end.close()
        self._ledger.close()

    @property
    def _ends(self) -> list[Receiver[Any] | Sender]:
        return [*self._senders, self._requests, *self._opens, *self._feeds]

    def _tell(self, message: Ready | Status | Alive | Compiling) -> None:
        """Say something of ourselves."""
        self._outputs.send(Chunk(ABOUT_ITSELF, message))

    async def _report(self) -> None:
        """Send the counters when they change, at most as fast as the gateway takes them.

        What an engine gives back when the last request has ended changes without a word: it is
        looked at soon, and then ever later.
        """
        patience_s = SETTLING_S
        while True:
            await self._ports.room.wait(ABOUT_ITSELF)
            self._changed.clear()
            status = self._status()
            self._tell(status)
            interval_s = STATUS_INTERVAL_S
            if not status.running and any(status.held.values()):
                interval_s = min(patience_s, STATUS_INTERVAL_S)
            try:
                async with asyncio.timeout(interval_s):  # Python 3.11's wait_for may lose a cancel
                    await self._changed.wait()
                patience_s = SETTLING_S
            except TimeoutError:
                patience_s *= 2

    async def _live(self) -> None:
        """Say that we are alive as long as the engine's own loop answers."""
        try:
            await send_signs(self._ask_engine, self._tell_life)
        except Exception:
            self._leave_if_engine_died()
            raise

    async def _ask_engine(self) -> None:
        self._leave_if_engine_died()
        await self._commands.unless_busy(self._stage.alive())

    def _tell_life(self, message: Alive | Compiling) -> None:
        if self._outputs.credit(ABOUT_ITSELF) > 0:
            self._tell(message)

    def _status(self) -> Status:
        seen = self._ledger.read_seen()
        if seen["nan_steps"] and not self._has_told_nan:
            self._has_told_nan = True
            logger.error("stage %s: NaN among the logits: its answers mean nothing", self._name)
        return Status(
            running=len(self._tasks),
            **seen,
            requests_total=self._num_requests,
            chunks_in=self._num_chunks_in,
            chunks_out=self._ports.num_chunks_out,
            held=self._held(),
            progress=self._progress(),
        )

    def _progress(self) -> int | None:
        """Returns the progress that requests wait for: a command has a deadline of its own."""
        if self._commands.is_busy or not isinstance(self._stage, TellsProgress):
            return None
        return self._stage.progress

    def _held(self) -> dict[str, int]:
        """Returns what requests hold here and in the engine; all zero when there is none."""
        own = 1  # what we say of ourselves
        credits = sum(end.num_requests for end in self._ends) - own
        held = self._ledger.read()
        waiting = {"tasks": len(self._tasks), "media": len(self._media)}
        return {**held, **waiting, "credits": held["credits"] + credits}

    # Chunks

    def _drain(self) -> None:
        """Take what has arrived: first what opens requests, then what feeds them."""
        while (chunk := self._requests.receive()) is not None:
            self._requests.grant(chunk.request_id)
            self._obey(chunk)
        self._drain_opens()
        for receiver in self._feeds:
            while (fed := receiver.receive()) is not None:
                self._num_chunks_in += 1
                if fed.request_id not in self._tasks:
                    self._drain_opens()
                if fed.request_id in self._tasks:
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
        for receiver, source in self._opens.items():
            while (chunk := receiver.receive()) is not None:
                receiver.grant(chunk.request_id)
                self._follow(source, chunk)

    def _obey(self, chunk: Chunk[ToStage]) -> None:
        """Executes a message of the gateway."""
        message = chunk.message
        if isinstance(message, Request):
            self._num_chunks_in += 1
            media = self._media.take(chunk.request_id)
            self._open(Opened(chunk.request_id, message, chunk.tensors, media=media))
        elif isinstance(message, MediumPiece):
            self._media.add(chunk.request_id, message, chunk.tensors["data"])
        elif isinstance(message, MoreText):
            self._add_text(chunk.request_id, message.text, chunk.last)
        elif isinstance(message, Cancel):
            self._cancel(chunk.request_id)
        elif isinstance(message, Command):
            self._commands.begin(chunk.request_id, message)
        elif isinstance(message, Stop):
            self._stopping.set()

    def _add_text(self, request_id: str, text: str, last: bool) -> None:
        """Adds text to a request that is being served: its task has begun when the stage is
        told.
        """
        if isinstance(self._stage, TakesText) and request_id in self._tasks:
            self._num_chunks_in += 1
            tell = self._stage.more_text
            asyncio.get_running_loop().call_soon(tell, request_id, text, last)

    def _follow(self, source: str, chunk: Chunk[EdgeMessage]) -> None:
        """Handles a message of a stage upstream."""
        message = chunk.message
        self._num_chunks_in += 1
        if isinstance(message, Open):
            self._announce(source, Opened(chunk.request_id, message, chunk.tensors))
        elif isinstance(self._stage, FollowsUpstream) and chunk.request_id in self._tasks:
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
        sources = list(dict.fromkeys(self._opens.values()))
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
        if opened.id in self._cancelled:
            return
        self._begin(opened.id, self._serve(opened))

    def _begin(self, request_id: str, serving: Coroutine[object, object, None]) -> None:
        self._num_requests += 1
        self._opened.inc()
        task = asyncio.get_running_loop().create_task(serving)
        self._tasks[request_id] = task
        task.add_done_callback(partial(self._clean_up, request_id))
        self._changed.set()

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
        del self._tasks[request_id]
        self._joining.pop(request_id, None)
        if self._ports.end_marks(request_id) and not self._has_outputs:
            self._outputs.forget(request_id)  # no last output closes it
        if task.cancelled():
            for sender in self._senders:
                sender.forget(request_id)
        elif self._ports.own_feed is not None:  # an engine may end before its text has
            self._ports.own_feed.forget(request_id)
        for receiver in self._feeds:
            receiver.forget(request_id)
        self._changed.set()

    def _cancel(self, request_id: str) -> None:
        self._media.take(request_id)
        self._cancelled[request_id] = None
        while len(self._cancelled) > MAX_CANCELLED:
            self._cancelled.popitem(last=False)
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()
            return
        for sender in self._senders:  # it failed before it had sent its last
            sender.forget(request_id)

    async def _serve(self, opened: Opened) -> None:
        self._ports.begin_marks(opened.id)
        began_at = time.monotonic()
        try:
            await self._stage.serve(opened)
            self._tell_finished(opened.id)
        except RequestError as error:
            self._leave_if_engine_died()
            self._ports.send_failure(opened.id, error.told_by(self._name))
        except Exception:
            self._leave_if_engine_died()
            logger.exception("request %s failed in stage %s", opened.id, self._name)
            self._send_failure(opened.id)
        finally:
            self._served_s.observe(time.monotonic() - began_at)

    def _leave_if_engine_died(self) -> None:
        """Exits if the engine has died: its processes may take seconds to end, and requests would
        fail.
        """
        if isinstance(self._stage, HasEngine) and self._stage.is_dead:
            logger.error("the engine of stage %s has died", self._name)
            os._exit(ENGINE_DIED)

    def _tell_finished(self, request_id: str) -> None:
        """Reports the end of a request in a stage without outputs; elsewhere the last output
        does.
        """
        if not self._has_outputs:
            self._ports.mark(request_id, "finished")
            self._ports.send_marks(request_id)

    def _send_failure(self, request_id: str) -> None:
        error = RequestError(500, f"Stage {self._name} failed; its log says why.")
        self._ports.send_failure(request_id, error.told_by(self._name))


def _end_with(process: int) -> None:
    """A process of our engine has died: end at once, so that the server starts us again."""
    logger.error("process %d of the engine ended", process)
    os._exit(ENGINE_DIED)


def run_stage(name: str, directory: Path) -> None:
    """Run one stage of the graph in a run directory until it is told to stop."""
    begin_loading(directory, name)
    begin_counting(directory, name)
    bound_logs()
    logging.basicConfig(level=os.environ.get(LOG_LEVEL, "INFO"), format="%(levelname)s %(message)s")
    graph = StageGraph.model_validate_json((directory / "graph.json").read_bytes())
    os.environ.update(stage_environment(graph.spec_of(name), graph.replicas[name].gpus))
    segments = directory / f"{name}{ENDING}"
    remove_segments(segments)  # the generation before us was killed
    os.environ[PLACE] = str(segments)
    asyncio.run(_run(graph, name, directory))


def stage_environment(spec: StageSpec, gpus: Sequence[int]) -> dict[str, str]:
    """Returns what the process of a stage's replica with these GPUs adds to its environment.

    Triton's cache is named even where it is the default: torch.compile moves an unnamed one at the
    moment of its first kernel, which a start that finds compiled code reaches at another time than
    one that does not. Kernels of the first would be compiled again by the second, for 40 s.
    """
    triton = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    own = {key: str(value) for key, value in spec.environment.items()}
    return {"TRITON_CACHE_DIR": triton, **gpu_environment(gpus), **own}


async def _run(graph: StageGraph, name: str, directory: Path) -> None:
    await StageWorker(graph, name, directory).run()
