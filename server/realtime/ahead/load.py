"""The load up to which a server works ahead, and the count of what that was worth."""

from collections.abc import Callable
from dataclasses import dataclass

from omnistage.server.options.bounds import SessionBounds
from omnistage.server.runtime.flights import Flights


@dataclass(frozen=True, slots=True)
class AheadLoad:
    """The bounds of a server: so many requests at once, above which nothing is done ahead.

    `count`: counts an answer that was begun ahead, by its outcome: used, cancelled or failed.
    """

    flights: Flights
    bounds: SessionBounds
    count: Callable[[str], None]

    @property
    def may_answer(self) -> bool:
        """Return whether an answer may be made ahead now."""
        return self._num_requests < self.bounds.answer_ahead

    @property
    def may_read(self) -> bool:
        """Return whether a history may be read ahead now."""
        return self._num_requests < self.bounds.history_ahead

    @property
    def _num_requests(self) -> int:
        return self.flights.num_running + self.flights.num_waiting
