"""Samples and figures of `omnistage bench realtime`; all times are seconds."""

from collections.abc import Iterable
from functools import cached_property

from pydantic import BaseModel, computed_field

from omnistage.bench.metrics import Summary, summarize


class TurnSample(BaseModel):
    """Times of one turn, as its client saw it, since the start of the level.

    `spoken_s` is when the last sample was sent. A barge-in ends the answer of this turn:
    `barge_in_s` from speech_started to response.done, and deltas that came in between.
    """

    session: int
    number: int
    speech_s: float
    spoken_s: float | None = None
    decided_s: float | None = None
    committed_s: float | None = None
    created_s: float | None = None
    first_text_s: float | None = None
    first_sound_s: float | None = None
    done_s: float | None = None
    audio_s: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    interrupted_s: float | None = None
    barge_in_s: float | None = None
    num_late_deltas: int = 0
    error: str | None = None


class SessionsLevel(BaseModel, frozen=True):
    """The turns of sessions that ran beside each other; `ahead`: of the server's own counters."""

    sessions: int
    duration_s: float
    client_lag_s: Summary | None = None
    ahead: dict[str, int] = {}
    turns: tuple[TurnSample, ...]

    @property
    def errors(self) -> list[str]:
        """Return one message for each turn that failed."""
        return [turn.error for turn in self.turns if turn.error is not None]

    @property
    def num_late_deltas(self) -> int:
        """Return how many deltas of interrupted answers came behind speech_started."""
        return sum(turn.num_late_deltas for turn in self.turns)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def decided_to_sound_s(self) -> Summary | None:
        """Return how long after speech_stopped the first audio came."""
        return self._between("decided_s", "first_sound_s")

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def spoken_to_sound_s(self) -> Summary | None:
        """Return how long after the last sample of speech the first audio came."""
        return self._between("spoken_s", "first_sound_s")

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def barge_in_s(self) -> Summary | None:
        """Return how long after speech_started the end of an interrupted answer came."""
        return summarize(_there(turn.barge_in_s for turn in self.turns))

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def timeline_s(self) -> dict[str, Summary]:
        """Return when each event of a turn came, after the last sample of its speech."""
        names = ("decided_s", "committed_s", "created_s", "first_text_s", "first_sound_s", "done_s")
        found = {name: self._between("spoken_s", name) for name in names}
        return {name: summary for name, summary in found.items() if summary is not None}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def audio_rate(self) -> float:
        """Return the seconds of audio that came in a second."""
        return sum(turn.audio_s for turn in self.turns) / self.duration_s

    def _between(self, begin: str, end: str) -> Summary | None:
        pairs = [(getattr(turn, begin), getattr(turn, end)) for turn in self.turns]
        return summarize(to - of for of, to in pairs if of is not None and to is not None)


class SessionsReport(BaseModel, frozen=True):
    """The file that `--json` writes."""

    date: str
    command: str
    omnistage: str
    url: str
    model: str
    seed: int
    levels: tuple[SessionsLevel, ...]


def _there(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None)
