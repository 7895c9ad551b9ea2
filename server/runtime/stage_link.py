"""The gateway's side of one replica of a stage: its channels, its life, what it last said."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender
from omnistage.server.runtime.changes import Change, without
from omnistage.server.runtime.inputs import Piece
from omnistage.server.runtime.stage_record import COUNTERS, StageRecord, StageState
from omnistage.stage_configs.replicas import stage_of
from omnistage.stages.messages.to_gateway import (
    Compiling,
    Lora,
    Metrics,
    OfItself,
    Ready,
    Status,
    ToGateway,
)
from omnistage.stages.messages.to_stage import Cancel, Command, MoreText, Stop


class StageHandle(Protocol):
    """Something that runs one generation of a stage: a process, or a task in tests."""

    async def start(self) -> None:
        """Start it; it says `ready` on its channel."""

    async def wait(self) -> str:
        """How it ended, once it has."""

    def kill(self) -> None:
        """End it at once, with everything below it."""

    async def stop(self, grace_s: float) -> None:
        """End it: it has been told to, and gets `grace_s` to do it by itself."""


StageLauncher = Callable[[str, Path], StageHandle]
Release = Callable[[str], Awaitable[None]]  # of what is kept for a replica


async def release_nothing(_: str) -> None:
    """Nothing is kept for a replica beside its process."""


class StageLink:
    """One replica of a stage as all of the gateway sees it: its record, its channels to use.

    To a dead one nothing is sent or granted.
    """

    def __init__(self, name: str, requests: Sender, outputs: Receiver[ToGateway]) -> None:
        self.name = name
        self.requests = requests
        self.outputs = outputs
        self._record = StageRecord()
        self._has_room = asyncio.Event()

    @property
    def record(self) -> StageRecord:
        """How it is now."""
        return self._record

    @property
    def stage(self) -> str:
        """The stage that it is a replica of."""
        return stage_of(self.name)

    @property
    def is_ready(self) -> bool:
        """Returns whether it can be asked anything."""
        return self.record.state is StageState.READY

    @property
    def is_open(self) -> bool:
        """Returns whether it takes requests."""
        return self.is_equal and not self.record.is_closed

    @property
    def is_equal(self) -> bool:
        """Returns whether it is ready, and as the others of its stage are."""
        return self.is_ready and not self.record.missed

    def send(self, request_id: str, message: Cancel | Stop | Command) -> None:
        """Send the last chunk of a request, or the only one."""
        if self.record.state is not StageState.DEAD:
            self.requests.send(Chunk(request_id, message, last=True))

    def flush(self) -> None:
        """Send what can go, and wake who waits for that."""
        self.requests.flush()
        self._has_room.set()

    async def room(self, request_id: str) -> None:
        """Return once the next chunk of a request would go at once, or never would."""
        while self.record.state is not StageState.DEAD and not self.requests.credit(request_id):
            self._has_room.clear()
            await self._has_room.wait()

    def send_text(self, request_id: str, text: str, last: bool) -> None:
        """The next piece of a request's text."""
        if self.record.state is not StageState.DEAD:
            self.requests.send(Chunk(request_id, MoreText(text), last=last))

    def send_media(self, request_id: str, piece: Piece) -> None:
        """Send the next piece of a request's media."""
        if self.record.state is not StageState.DEAD:
            message, data = piece
            self.requests.send(Chunk(request_id, message, 0, {"data": data}))

    def grant(self, request_id: str) -> None:
        """Let the stage send one more output of a request."""
        if self.record.state is not StageState.DEAD:
            self.outputs.grant(request_id)

    def forget(self, request_id: str) -> None:
        """Let go of a request that has ended here."""
        if self.record.state is not StageState.DEAD:
            self.outputs.forget(request_id)

    def finish(self, request_id: str, is_cancelled: bool) -> None:
        """Nothing more is sent for a request: its credit and slots come back."""
        if is_cancelled:
            self.send(request_id, Cancel())
        elif self.record.state is not StageState.DEAD:
            self.requests.forget(request_id)
        self.forget(request_id)


class OwnedStage(StageLink):
    """One replica for its fleet and its supervisor, who alone write its record."""

    def __init__(
        self,
        name: str,
        requests: Sender,
        outputs: Receiver[ToGateway],
        on_open: Callable[[], None],
    ) -> None:
        """`on_open` is called when it may take requests that it did not take before."""
        super().__init__(name, requests, outputs)
        self._on_open = on_open
        self.has_begun = asyncio.Event()  # it was ready once, or ended before

    # What it says

    def apply(self, message: OfItself) -> None:
        """Record what the stage says of itself."""
        now = asyncio.get_running_loop().time()
        if isinstance(message, Status):
            counters = {name: getattr(message, name) for name in COUNTERS}
            self._record = replace(self._record, counters=counters, held=message.held)
            self._apply_progress(message.progress)
        elif isinstance(message, Ready):
            self._record = replace(
                self._record,
                state=StageState.READY,
                was_ready=True,
                alive_at=now,
                ready_at=now,
                speakers=tuple(message.speakers),
                sample_rate_hz=message.sample_rate_hz,
                num_channels=message.num_channels,
                max_model_len=message.max_model_len,
                commands=message.commands,
                work=message.work,
                loras=None if message.loras is None else tuple(message.loras),
                speech=message.speech,
                reading=message.reading,
            )
            self.has_begun.set()
            self._on_open()
        elif isinstance(message, Metrics):
            families = tuple(message.families)
            self._record = replace(self._record, families=families, measured_at=time.monotonic())
        elif isinstance(message, Compiling):
            since = self._record.compiles_since
            self._record = replace(
                self._record, alive_at=now, compiles_since=now if since is None else since
            )
        else:
            self._record = replace(self._record, alive_at=now, compiles_since=None)

    def _apply_progress(self, progress: int | None) -> None:
        gets_on = progress is None or progress != self._record.progress
        stuck_at = None if gets_on else self._record.stuck_at
        self._record = replace(self._record, progress=progress, stuck_at=stuck_at)

    # Life

    @property
    def served_s(self) -> float:
        """For how long this generation has been ready."""
        ready_at = self._record.ready_at
        return 0.0 if ready_at is None else asyncio.get_running_loop().time() - ready_at

    def end(self, ended_by: str, is_lost: bool) -> None:
        """Records the end of its process."""
        self._record = replace(
            self._record,
            state=StageState.DEAD,
            ended_by=ended_by,
            is_lost=is_lost,
            families=(),
            measured_at=None,
            compiles_since=None,
        )
        self.has_begun.set()

    def begin_next_generation(self) -> None:
        """It starts again, with nothing of what it had."""
        self._record = replace(
            self._record,
            state=StageState.LOADING,
            generation=self._record.generation + 1,
            ready_at=None,
            loras=None,
            is_closed=False,
            asleep=(),
            missed=(),
            counters=dict.fromkeys(COUNTERS, 0),
            held={},
            progress=None,
            stuck_at=None,
        )

    def excuse(self, seconds: float) -> None:
        """Count no such time as silence: nobody could hear it."""
        now = asyncio.get_running_loop().time()

        def later(at: float | None) -> float | None:
            return None if at is None else min(now, at + seconds)

        record = self._record
        self._record = replace(
            record,
            alive_at=min(now, record.alive_at + seconds),
            compiles_since=later(record.compiles_since),
            stuck_at=later(record.stuck_at),
        )

    def close(self) -> None:
        """Close its channels' ends: the server ends."""
        self._record = replace(self._record, state=StageState.DEAD)
        self.requests.close()
        self.outputs.close()

    # What is asked of it

    def refuse_requests(self) -> None:
        """No request comes to it from now on."""
        self._record = replace(self._record, is_closed=True)

    def accept_requests(self) -> None:
        """Requests come to it again, unless some part of it sleeps."""
        self._record = replace(self._record, is_closed=bool(self._record.asleep))
        self._on_open()

    def note_asleep(self, parts: tuple[str, ...]) -> None:
        """These parts of it sleep now."""
        self._record = replace(self._record, asleep=parts)

    def note_missed(self, changes: Sequence[Change]) -> None:
        """Others of its stage have done these: it gets no request until it has done them too."""
        self._record = replace(self._record, missed=tuple(changes))

    def note_done(self, change: Change) -> None:
        """It has done this as the others of its stage."""
        self._record = replace(self._record, missed=without(self._record.missed, change))
        self._on_open()

    def note_loras(self, loras: tuple[Lora, ...]) -> None:
        """It has these adapters now; of a stage whose adapters are no models nothing is noted."""
        if self._record.loras is not None:
            self._record = replace(self._record, loras=loras)

    def note_overdue(self, limit_s: float) -> None:
        """A request of it waited for longer than `limit_s`: it has that long again to get on."""
        if self._record.progress is not None and self._record.stuck_at is None:
            now = asyncio.get_running_loop().time()
            self._record = replace(self._record, stuck_at=now, stuck_limit_s=limit_s)
