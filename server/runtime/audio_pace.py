"""How the audio of an answer came, for a player in real time."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class AudioPace:
    """The pace of one answer's packets; its player starts at the first and waits when it runs
    dry.
    """

    length_s: float = 0.0
    stall_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    last_at: float | None = None
    _dry_at: float = 0.0

    def packet(self, now: float, seconds: float) -> None:
        """A packet of so many seconds has come."""
        if self.last_at is None:
            self._dry_at = now
        else:
            self.gaps_s.append(now - self.last_at)
        self.stall_s += max(0.0, now - self._dry_at)
        self._dry_at = max(self._dry_at, now) + seconds
        self.length_s += seconds
        self.last_at = now

    def factor(self, started_at: float) -> float:
        """The real-time factor: the time until the last packet, over the length of all."""
        assert self.last_at is not None, "nothing has come"
        return (self.last_at - started_at) / self.length_s
