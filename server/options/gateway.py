"""The options of a server beside its graph: each declared once, with its flag and its help.

`omnistage serve` takes them as flags and from the environment, `Omni` takes those of RunOptions as
keywords of the same names: declare an option here, and use it. docs/options.md lists them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

from omnistage.server.media.decode_room import NUM_BYTES
from omnistage.server.options.bounds import (
    DEFAULT_BOUNDS,
    DEFAULT_VIDEOS,
    SessionBounds,
    VideoBounds,
)
from omnistage.server.options.declared import LIMITS, LOGS, MEDIA, MIB, STAGES
from omnistage.server.runtime.flights import MAX_REQUESTS
from omnistage.server.runtime.processes.mps_daemon import Mps
from omnistage.server.telemetry.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from omnistage.server.http.access.cors import Cors
    from omnistage.server.http.access.keys import Keys


class RunKeywords(TypedDict, total=False):
    """Keywords of the options of RunOptions."""

    request_timeout: float
    decode_memory_mb: int
    allowed_media_path: str | Path
    allowed_media_domains: Sequence[str]
    mps: Literal["auto", "on", "off"]
    log_level: Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options that mean the same without HTTP."""

    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--request-timeout",
            rich_help_panel=LIMITS,
            min=0.001,
            help="How many seconds a request may take before it gets 504.",
        ),
    ] = None
    decode_bytes: Annotated[
        int,
        MIB,
        typer.Option(
            "--decode-memory-mb",
            rich_help_panel=MEDIA,
            min=64,
            help="How many MiB the media of all requests may take while they are decoded; "
            "more wait.",
        ),
    ] = NUM_BYTES
    media_path: Annotated[
        Path | None,
        typer.Option(
            "--allowed-media-path",
            rich_help_panel=MEDIA,
            exists=True,
            file_okay=False,
            help="The folder below which file: URLs are allowed.",
        ),
    ] = None
    media_domains: Annotated[
        tuple[str, ...],
        typer.Option(
            "--allowed-media-domains",
            rich_help_panel=MEDIA,
            help="Fetch media from this host only; may be given several times. "
            ".example.org means every host below example.org.",
        ),
    ] = ()
    mps: Annotated[
        Mps,
        typer.Option(
            "--mps",
            rich_help_panel=STAGES,
            help="NVIDIA's MPS, with which stages on one GPU run at the same time. The server "
            "starts and ends the daemon; auto: if stages share a GPU and no daemon runs.",
        ),
    ] = Mps.AUTO
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level",
            rich_help_panel=LOGS,
            case_sensitive=False,
            help="The least severe messages that are logged, of the server and of its stages. On "
            "a terminal what stages print goes to their log files, except with debug.",
        ),
    ] = LogLevel.INFO


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server's certificate; `key` is in `certificate`, too, if it is None."""

    certificate: Path
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class CallNetwork:
    """The UDP ports of calls by WebRTC, None for any free ones, and the IP addresses that callers
    are sent in place of the server's own.
    """

    ports: range | None = None
    addresses: tuple[str, ...] = ()


def _no_keys() -> "Keys":
    from omnistage.server.http.access.keys import NO_KEYS

    return NO_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(RunOptions):
    """The options of a server; those without a declaration are made of several flags."""

    keys: "Keys" = field(default_factory=_no_keys)
    admin_keys: "Keys" = field(default_factory=_no_keys)
    cors: "Cors | None" = None
    tls: Tls | None = None
    traces_url: str | None = None  # where spans are posted
    calls: CallNetwork = CallNetwork()
    root_path: str = ""  # of a proxy before the server
    keep_alive_s: float = 15.0  # of silence in a stream, then a comment is sent
    max_requests: Annotated[
        int,
        typer.Option(
            "--max-queue",
            rich_help_panel=LIMITS,
            min=1,
            help="How many requests may run or wait; more get 503.",
        ),
    ] = MAX_REQUESTS
    first_sound_s: Annotated[
        float | None,
        typer.Option(
            "--max-first-sound",
            rich_help_panel=LIMITS,
            min=0.001,
            help="Within how many seconds a spoken answer has to begin to sound; those that would "
            "begin later get 503 at once.",
        ),
    ] = None
    sessions: SessionBounds = DEFAULT_BOUNDS  # of /v1/realtime
    videos: VideoBounds = DEFAULT_VIDEOS  # of /v1/videos
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            "--requests-per-minute",
            rich_help_panel=LIMITS,
            min=1,
            help="How many requests per minute each key (without keys: each address) may send; "
            "more get 429.",
        ),
    ] = None
    max_unsent_bytes: Annotated[
        int,
        MIB,
        typer.Option(
            "--client-buffer-mb",
            rich_help_panel=LIMITS,
            min=1,
            help="How many MiB of its answer a client may leave unread before it is cut off.",
        ),
    ] = 16 << 20  # more than four minutes of speech ahead of a player
    voices_path: Annotated[
        Path | None,
        typer.Option(
            "--voices",
            rich_help_panel=MEDIA,
            exists=True,
            file_okay=False,
            writable=True,
            help="The folder in which voices that clients make from a recording are kept. "
            "Without one they are lost at the end.",
        ),
    ] = None
    turn_model: Annotated[
        Path | None,
        typer.Option(
            "--turn-model",
            rich_help_panel=MEDIA,
            exists=True,
            dir_okay=False,
            help="An ONNX file that judges for semantic_vad whether a speaker is done; without one "
            "a longer silence does.",
        ),
    ] = None
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            rich_help_panel=LOGS,
            help="How log lines look: text, or json (one object per line).",
        ),
    ] = LogFormat.TEXT
