"""Chooses the replica of each stage that gets a request."""

from collections import Counter
from collections.abc import Iterable, Sequence

from omnistage.server.runtime.stage_link import StageLink

Path = Sequence[StageLink]  # one replica of each stage that a request goes through


class Routes:
    """Counts the requests of each replica, and binds each request to the one with the fewest.

    Among equals it is the one whose last request is the longest ago.
    """

    def __init__(self) -> None:
        self._num_requests: Counter[StageLink] = Counter()
        self._last_turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, replicas: Iterable[Sequence[StageLink]]) -> Path:
        """One of each stage's replicas, all of which take requests."""
        return [min(those, key=self._load) for those in replicas]

    def _load(self, link: StageLink) -> tuple[int, int]:
        return self._num_requests[link], self._last_turns.get(link.name, 0)

    def begin(self, path: Path) -> None:
        """A request is sent on its way."""
        self._turn += 1
        for link in path:
            self._num_requests[link] += 1
            self._last_turns[link.name] = self._turn

    def end(self, path: Path) -> None:
        """It has ended, or goes another way."""
        for link in path:
            self._num_requests[link] -= 1
            if not self._num_requests[link]:
                del self._num_requests[link]
