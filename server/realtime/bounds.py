"""Bounds of sessions: how many there may be, how long one is, how much of it is kept."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from omnistage.server.common.errors import ApiError
from omnistage.server.options.bounds import SessionBounds


class SessionPlaces:
    """Places of sessions, of all clients and of each."""

    def __init__(self, bounds: SessionBounds) -> None:
        self._bounds = bounds
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Hold a place for a client's session; raises ApiError if there is none."""
        self._check(client)
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]

    def _check(self, client: str) -> None:
        bounds = self._bounds
        if self._taken.total() >= bounds.max_sessions:
            message = f"The server already has {bounds.max_sessions} sessions."
            raise ApiError(503, message, code="server_overloaded", retry_after_s=1)
        if bounds.max_of_key is not None and self._taken[client] >= bounds.max_of_key:
            message = f"You already have {bounds.max_of_key} sessions."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=1)
