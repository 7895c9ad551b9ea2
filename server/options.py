"""The options of a server beside its graph: each declared once, with its flag and its help.

`omnistage serve` takes them as flags and from the environment, `Omni` takes those of RunOptions as
keywords of the same names: declare an option here, and use it. docs/options.md lists them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_args, get_origin

import typer
from typer.models import OptionInfo

from omnistage.server.media.decode_room import NUM_BYTES
from omnistage.server.runtime.flights import MAX_REQUESTS
from omnistage.server.runtime.processes.mps_daemon import Mps
from omnistage.server.telemetry.logs import LogFormat, LogLevel
from omnistage.stage_configs.json_types import Json, JsonMap

if TYPE_CHECKING:
    from omnistage.server.http.access.cors import Cors
    from omnistage.server.http.access.keys import Keys

LISTEN, LIMITS, MEDIA = "Address", "Keys and limits", "Media"
STAGES, WEB, LOGS = "Stages and GPUs", "Browsers and TLS", "Logs, traces, profiles"
MIB, GIB = 1 << 20, 1 << 30  # beside an option that is given in them: its field has bytes


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


@dataclass(frozen=True, slots=True)
class Declared:
    """A field with a flag: `keyword` is its name in Python, `kind` the field's type."""

    field: str
    keyword: str
    kind: Any
    flag: OptionInfo
    default: Any
    unit: int = 1

    def value(self, given: Any) -> object:
        """Returns what the field gets for something given, a number of which is in `unit`."""
        if self.kind == tuple[str, ...]:
            return tuple(given or ())
        if isinstance(given, str):
            return Path(given) if self.kind == Path | None else self.kind(given)
        return given if self.unit == 1 else given * self.unit


def declared(options: type) -> Iterator[Declared]:
    """Yields the fields of a class of options, and of those that it groups, that have a flag."""
    for one in fields(options):
        if isinstance(one.type, type) and is_dataclass(one.type):
            yield from declared(one.type)
        elif get_origin(one.type) is Annotated:
            kind, *units, flag = get_args(one.type)
            # Typer has the first name in the place of a default, which is the field's.
            keyword = flag.default.removeprefix("--").replace("-", "_")
            yield Declared(one.name, keyword, kind, flag, one.default, *units)


def given_fields(options: type, given: JsonMap) -> Json:
    """Returns the fields of a class of options that are given by keyword."""
    own = {one.name: one.type for one in fields(options)}
    found = {
        one.field: one.value(given[one.keyword])
        for one in declared(options)
        if one.field in own and one.keyword in given
    }
    for name, kind in own.items():
        if isinstance(kind, type) and is_dataclass(kind):
            found[name] = kind(**given_fields(kind, given))
    return found
