"""The gateway's side of one stage: its handle, its two channels, what it last said of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender


class StageHandle(Protocol):
    """Something that runs a stage: a process, or a task in tests."""

    async def start(self) -> None:
        """Start it; it says `ready` on its channel."""

    async def wait(self) -> str:
        """How it ended, once it has."""

    async def stop(self, grace_s: float) -> None:
        """End it: it has been told to, and gets `grace_s` to do it by itself."""


StageLauncher = Callable[[str, Path], StageHandle]


class StageState(StrEnum):
    """A stage's life."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


COUNTERS = ("running", "waiting", "requests_total", "chunks_in", "chunks_out")


@dataclass(slots=True)
class StageLink:
    """One stage as the orchestrator sees it; a dead one is neither told nor granted anything."""

    name: str
    handle: StageHandle
    requests: Sender
    outputs: Receiver
    state: StageState = StageState.LOADING
    ended_by: str = ""
    speakers: tuple[str, ...] = ()
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def hear(self, chunk: Chunk) -> None:
        """Take what the stage says of itself."""
        if chunk.kind == "ready":
            self.state = StageState.READY
            self.speakers = tuple(chunk.meta.get("speakers", ()))
        else:
            self.counters = {name: int(chunk.meta[name]) for name in COUNTERS}

    def tell(self, request_id: str, kind: str) -> None:
        """Send a request's last chunk: it only says `kind`."""
        if self.state is not StageState.DEAD:
            self.requests.send(Chunk(request_id, kind, last=True))

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

    @property
    def health(self) -> Mapping[str, Any]:
        """Its line of /health."""
        return {"state": str(self.state), "generation": 1, **self.counters, "restarts": 0}
