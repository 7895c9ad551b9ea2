"""Tells of a stage itself: its counters as they change, signs of life, metrics."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.families import SECONDS
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Alive, Compiling, Ready, Status
from omnistage.stages.worker.commands import Commands
from omnistage.stages.worker.ledger import Ledgers
from omnistage.stages.worker.process.engine_processes import leave_if_engine_died
from omnistage.stages.worker.process.gpu_metrics import GpuMetrics
from omnistage.stages.worker.requests.coming_media import ComingMedia
from omnistage.stages.worker.signs import send_signs
from omnistage.stages.worker.snapshots import Snapshots
from omnistage.stages.worker.stage import HasMetrics, Stage, TellsProgress
from omnistage.stages.worker.wiring import Wiring

logger = logging.getLogger("omnistage.stage")

STATUS_INTERVAL_S = 1.0
SETTLING_S = 0.02  # after a request's end, until what its engine holds is looked at again


@dataclass
class Work:
    """The requests of a stage: those that run, and how many there were."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    media: ComingMedia = field(default_factory=ComingMedia)
    num_requests: int = 0
    num_chunks_in: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Reports:
    """Sends them to the gateway, at most as fast as it takes them."""

    def __init__(
        self, wiring: Wiring, stage: Stage, commands: Commands, work: Work, ledger: Ledgers
    ) -> None:
        self._wiring, self._stage, self._commands, self._work = wiring, stage, commands, work
        self._ports = wiring.ports
        self._outputs = wiring.ports.outputs
        self._ledger = ledger
        self._has_told_nan = False
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.opened = Counter(
            "omnistage_stage_requests", "Requests that a stage began.", registry=self._registry
        )
        self.served_s = Histogram(
            "omnistage_stage_request_seconds",
            "From a request's arrival in a stage to its end there, however it ended.",
            registry=self._registry,
            buckets=SECONDS,
        )

    def snapshots(self, gpus: Sequence[str]) -> Snapshots:
        """Return the snapshots of this process, its GPUs and its stage, which has started."""
        collectors: list[Collector] = [self._registry, GpuMetrics(gpus)]
        if isinstance(self._stage, HasMetrics):
            collectors.append(self._stage.metrics)
        return Snapshots(self._ports.name, collectors, self._outputs)

    def tell(self, message: Ready | Status | Alive | Compiling) -> None:
        """Say something of ourselves."""
        self._outputs.send(Chunk(ABOUT_ITSELF, message))

    async def report(self) -> None:
        """Send the counters when they change, at most as fast as the gateway takes them.

        What an engine gives back when the last request has ended changes without a word: it is
        looked at soon, and then ever later.
        """
        patience_s = SETTLING_S
        while True:
            await self._ports.room.wait(ABOUT_ITSELF)
            self._work.changed.clear()
            status = self._status()
            self.tell(status)
            interval_s = STATUS_INTERVAL_S
            if not status.running and any(status.held.values()):
                interval_s = min(patience_s, STATUS_INTERVAL_S)
            try:
                async with asyncio.timeout(interval_s):  # Python 3.11's wait_for may lose a cancel
                    await self._work.changed.wait()
                patience_s = SETTLING_S
            except TimeoutError:
                patience_s *= 2

    async def live(self) -> None:
        """Say that we are alive as long as the engine's own loop answers."""
        try:
            await send_signs(self._ask_engine, self._tell_life)
        except Exception:
            leave_if_engine_died(self._stage, self._ports.name)
            raise

    async def _ask_engine(self) -> None:
        leave_if_engine_died(self._stage, self._ports.name)
        await self._commands.unless_busy(self._stage.alive())

    def _tell_life(self, message: Alive | Compiling) -> None:
        if self._outputs.credit(ABOUT_ITSELF) > 0:
            self.tell(message)

    def _status(self) -> Status:
        seen = self._ledger.read_seen()
        if seen["nan_steps"] and not self._has_told_nan:
            self._has_told_nan = True
            logger.error(
                "stage %s: NaN among the logits: its answers mean nothing", self._ports.name
            )
        return Status(
            running=len(self._work.tasks),
            **seen,
            requests_total=self._work.num_requests,
            chunks_in=self._work.num_chunks_in,
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
        credits = sum(end.num_requests for end in self._wiring.ends) - own
        held = self._ledger.read()
        waiting = {"tasks": len(self._work.tasks), "media": len(self._work.media)}
        return {**held, **waiting, "credits": held["credits"] + credits}

    def close(self) -> None:
        """Close the ledger of what the engine holds."""
        self._ledger.close()
