"""Bounds of sessions and of the jobs of videos."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.options.declared import GIB, LIMITS, MEDIA, MIB


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


@dataclass(frozen=True, slots=True)
class VideoBounds:
    """The jobs of /v1/videos that are kept, and those that wait or run.

    `folder`: None for a temporary one.
    """

    folder: Annotated[
        Path | None,
        typer.Option(
            "--videos-dir",
            rich_help_panel=MEDIA,
            exists=True,
            file_okay=False,
            writable=True,
            help="The folder in which videos of /v1/videos are kept, of one server at a time. "
            "Without one they are lost at the end.",
        ),
    ] = None
    max_bytes: Annotated[
        int,
        GIB,
        typer.Option(
            "--videos-max-gib",
            rich_help_panel=MEDIA,
            min=1,
            help="How many GiB the videos of /v1/videos and what waits for them may take; the "
            "oldest go first.",
        ),
    ] = 16 << 30
    max_age_s: Annotated[
        int,
        typer.Option(
            "--videos-max-age",
            rich_help_panel=MEDIA,
            min=1,
            help="How many seconds a video of /v1/videos is kept once it is made.",
        ),
    ] = 86_400
    max_queue: Annotated[
        int,
        typer.Option(
            "--videos-max-queue",
            rich_help_panel=LIMITS,
            min=1,
            help="How many videos of /v1/videos may run or wait; more get 429.",
        ),
    ] = 100
    at_once: Annotated[
        int,
        typer.Option(
            "--videos-at-once",
            rich_help_panel=LIMITS,
            min=1,
            help="How many videos of /v1/videos run at once.",
        ),
    ] = 4


DEFAULT_VIDEOS = VideoBounds()
