"""The options of a server, beside its graph."""

from dataclasses import dataclass
from pathlib import Path

from omnistage.server.http.cors import Cors
from omnistage.server.http.keys import NO_KEYS, Keys
from omnistage.server.http.sse import KEEP_ALIVE_S, MAX_UNSENT_BYTES
from omnistage.server.media.decode_room import NUM_BYTES
from omnistage.server.realtime.bounds import DEFAULT_BOUNDS, SessionBounds
from omnistage.server.runtime.flights import MAX_REQUESTS
from omnistage.server.runtime.mps_daemon import Mps
from omnistage.server.telemetry.logs import LogFormat, LogLevel


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server's certificate; `key` is in `certificate`, too, if it is None."""

    certificate: Path
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Who may ask, how much, whether stages run under MPS, and what is told of requests."""

    keys: Keys = NO_KEYS
    admin_keys: Keys = NO_KEYS
    keep_alive_s: float = KEEP_ALIVE_S
    max_unsent_bytes: int = MAX_UNSENT_BYTES
    max_requests: int = MAX_REQUESTS
    sessions: SessionBounds = DEFAULT_BOUNDS  # of /v1/realtime
    requests_per_minute: int | None = None
    timeout_s: float | None = None
    decode_bytes: int = NUM_BYTES
    media_path: Path | None = None
    media_domains: tuple[str, ...] = ()
    voices_path: Path | None = None  # where stored voices are; None: in memory
    mps: Mps = Mps.OFF
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO
    traces_url: str | None = None  # where spans are posted
    cors: Cors | None = None
    tls: Tls | None = None
    root_path: str = ""  # of a proxy before the server
