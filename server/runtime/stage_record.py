"""Holds the state of a stage, and what it last told of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from omnistage.server.runtime.changes import Change
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages.families import MetricFamily
from omnistage.stages.messages.to_gateway import (
    Lora,
    NumChannels,
    Reading,
    Speech,
)


class StageState(StrEnum):
    """A stage's life."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


COUNTERS = ("running", "waiting", "requests_total", "chunks_in", "chunks_out", "nan_steps")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """Says how a stage is, and what it last said of itself; only its owner makes the next one."""

    state: StageState = StageState.LOADING
    generation: int = 1
    ended_by: str = ""
    is_lost: bool = False  # dead, and not started again
    alive_at: float = 0.0
    compiles_since: float | None = None  # its engine has not answered since, as it compiles
    ready_at: float | None = None
    was_ready: bool = False
    speakers: tuple[str, ...] = ()
    sample_rate_hz: int | None = None  # of the audio that it makes
    num_channels: NumChannels = 1  # of the same
    max_model_len: int | None = None  # how many tokens its model takes, if it has one of tokens
    commands: Mapping[str, str] = field(default_factory=dict)  # each with why it is refused, or ""
    work: WorkBound = field(default_factory=WorkBound)  # what it takes at most
    loras: tuple[Lora, ...] | None = None  # those that are models of their own
    speech: Speech | None = None  # of an entry that speaks a given text
    reading: Reading = field(default_factory=Reading)  # of an entry whose requests have media
    is_closed: bool = False  # it sleeps or is about to: no request comes to it
    asleep: tuple[str, ...] = ()  # what of it sleeps
    missed: tuple[Change, ...] = ()  # what others of its stage have done, and it has not
    progress: int | None = None  # of what it computes; None: it computes nothing, or does not say
    stuck_at: float | None = None  # when a request became overdue, if it has not got on since
    stuck_limit_s: float = 0.0
    counters: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    held: Mapping[str, int] = field(default_factory=dict)
    families: tuple[MetricFamily, ...] = ()  # of its metrics, as its process last sent them
    measured_at: float | None = None  # when that was; None: its process sent none

    @property
    def health(self) -> JsonMap:
        """Returns its entry of /health."""
        return {
            "state": str(self.state),
            "generation": self.generation,
            **self.counters,
            "restarts": self.generation - 1,
            "ended_by": self.ended_by,
            "asleep": list(self.asleep),
            "compiling": self.compiles_since is not None,
            "held": self.held,
        }
