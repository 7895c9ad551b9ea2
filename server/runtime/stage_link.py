"""The gateway's side of one stage: its two channels, its life, what it last said of itself."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stage_configs.work import WorkBound


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


class StageState(StrEnum):
    """A stage's life."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


COUNTERS = ("running", "waiting", "requests_total", "chunks_in", "chunks_out", "nan_steps")


@dataclass(slots=True)
class StageLink:
    """One stage as the gateway sees it; a dead one is neither told nor granted anything."""

    name: str
    requests: Sender
    outputs: Receiver
    state: StageState = StageState.LOADING
    generation: int = 1
    ended_by: str = ""
    is_lost: bool = False  # dead, and not started again
    alive_at: float = 0.0
    ready_at: float | None = None
    was_ready: bool = False
    speakers: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)  # each with why it is refused, or ""
    work: WorkBound = field(default_factory=WorkBound)  # what it takes at most
    is_closed: bool = False  # it sleeps or is about to: no request comes to it
    asleep: tuple[str, ...] = ()  # what of it sleeps
    progress: int | None = None  # of what it computes; None: it computes nothing, or does not say
    stuck_at: float | None = None  # when a request became overdue, if it has not got on since
    stuck_limit_s: float = 0.0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    held: dict[str, int] = field(default_factory=dict)

    # Life

    def hear(self, chunk: Chunk) -> None:
        """Take what the stage says of itself: `ready`, `status`, or that it is `alive`."""
        if chunk.kind == "ready":
            self.hear_life()
            self.state = StageState.READY
            self.was_ready = True
            self.ready_at = self.alive_at
            self.speakers = tuple(chunk.meta.get("speakers", ()))
            self.commands = dict(chunk.meta.get("commands", {}))
            self.work = WorkBound.of(chunk.meta.get("work", {}))
        elif chunk.kind == "alive":
            self.hear_life()
        else:
            self.counters = {name: int(chunk.meta[name]) for name in COUNTERS}
            self.held = dict(chunk.meta["held"])
            self._hear_progress(chunk.meta.get("progress"))

    def hear_life(self) -> None:
        """It was alive just now."""
        self.alive_at = asyncio.get_running_loop().time()

    def _hear_progress(self, progress: int | None) -> None:
        if progress is None or progress != self.progress:
            self.stuck_at = None
        self.progress = progress

    def miss(self, limit_s: float) -> None:
        """A request of it waited for longer than `limit_s`: it has that long again to get on."""
        if self.progress is not None and self.stuck_at is None:
            self.stuck_at = asyncio.get_running_loop().time()
            self.stuck_limit_s = limit_s

    def begin_next_generation(self) -> None:
        """It starts again, with nothing of what it had."""
        self.state = StageState.LOADING
        self.generation += 1
        self.ready_at = None
        self.is_closed = False
        self.asleep = ()
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.held = {}
        self.progress = self.stuck_at = None

    @property
    def served_s(self) -> float:
        """For how long this generation has been ready."""
        return 0.0 if self.ready_at is None else asyncio.get_running_loop().time() - self.ready_at

    @property
    def health(self) -> Mapping[str, Any]:
        """Its line of /health."""
        return {
            "state": str(self.state),
            "generation": self.generation,
            **self.counters,
            "restarts": self.generation - 1,
            "ended_by": self.ended_by,
            "asleep": list(self.asleep),
            "held": self.held,
        }

    # Requests

    def tell(self, request_id: str, kind: str) -> None:
        """Send a request's last chunk: it only says `kind`."""
        if self.state is not StageState.DEAD:
            self.requests.send(Chunk(request_id, kind, last=True))

    def order(self, command_id: str, meta: Mapping[str, Any]) -> None:
        """Send a command."""
        if self.state is not StageState.DEAD:
            self.requests.send(Chunk(command_id, "command", meta=meta, last=True))

    def grant(self, request_id: str) -> None:
        """Let the stage send one more output of a request."""
        if self.state is not StageState.DEAD:
            self.outputs.grant(request_id)

    def forget(self, request_id: str) -> None:
        """Let go of a request that has ended here."""
        if self.state is not StageState.DEAD:
            self.outputs.forget(request_id)

    def finish(self, request_id: str, is_cancelled: bool) -> None:
        """Nothing more is sent for a request: its credit and slots come back."""
        if is_cancelled:
            self.tell(request_id, "cancel")
        elif self.state is not StageState.DEAD:
            self.requests.forget(request_id)
        self.forget(request_id)
