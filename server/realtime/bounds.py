"""Bounds of sessions: how many there may be, how long one is, how much of it is kept."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from omnistage.server.common.declared_options import LIMITS, MIB
from omnistage.server.common.errors import ApiError


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """The bounds of a server's sessions; `max_of_key`: of one key, None for as many as there are.

    A session ends after `length_s`, and after `idle_s` without an event while nothing is answered.
    Its items take at most `max_bytes`. Answers begin before the end of a turn while the server has
    fewer requests than `answer_ahead`, and histories are read ahead while it has fewer than
    `history_ahead`.
    """

    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            rich_help_panel=LIMITS,
            min=0,
            help="How many sessions of /v1/realtime may be open; more get 503.",
        ),
    ] = 64
    max_of_key: Annotated[
        int | None,
        typer.Option(
            "--sessions-per-key",
            rich_help_panel=LIMITS,
            min=1,
            help="How many sessions of /v1/realtime each key (without keys: each address) may "
            "have open; more get 429.",
        ),
    ] = None
    length_s: Annotated[
        int,
        typer.Option(
            "--session-timeout",
            rich_help_panel=LIMITS,
            min=1,
            help="How many seconds a session of /v1/realtime may last.",
        ),
    ] = 3600
    idle_s: Annotated[
        float,
        typer.Option(
            "--session-idle-timeout",
            rich_help_panel=LIMITS,
            min=0.001,
            help="After how many seconds without an event a session of /v1/realtime is closed, "
            "while nothing is answered.",
        ),
    ] = 600.0
    max_bytes: Annotated[
        int,
        MIB,
        typer.Option(
            "--session-memory-mb",
            rich_help_panel=LIMITS,
            min=1,
            help="How many MiB of items a session of /v1/realtime keeps; the oldest are forgotten.",
        ),
    ] = 64 << 20
    answer_ahead: Annotated[
        int,
        typer.Option(
            "--answer-ahead",
            rich_help_panel=LIMITS,
            min=0,
            help="With fewer requests in the server, a session of /v1/realtime begins its answer "
            "while a turn may end; 0: never.",
        ),
    ] = 8
    history_ahead: Annotated[
        int,
        typer.Option(
            "--history-ahead",
            rich_help_panel=LIMITS,
            min=0,
            help="With fewer requests in the server, what has changed in a session of /v1/realtime "
            "is read before its next answer; 0: never.",
        ),
    ] = 16


DEFAULT_BOUNDS = SessionBounds()


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
