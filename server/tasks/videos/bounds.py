"""The bounds of the jobs of /v1/videos, which are options of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.common.declared_options import GIB, LIMITS, MEDIA


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
