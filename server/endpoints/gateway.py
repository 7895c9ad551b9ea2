"""Common parts of the endpoints of one app."""

from dataclasses import dataclass

from omnistage.server.endpoints.counters import RequestCounters
from omnistage.server.http.sse import KEEP_ALIVE_S, MAX_UNSENT_BYTES
from omnistage.server.http.temporary_keys import TemporaryKeys
from omnistage.server.realtime.bounds import DEFAULT_BOUNDS, SessionBounds
from omnistage.server.realtime.settings import Settings
from omnistage.server.tasks.images.store import ImageStore
from omnistage.server.tasks.service import Service
from omnistage.server.telemetry.follow import Following
from omnistage.server.telemetry.recent import RecentTraces


@dataclass(frozen=True, slots=True)
class Gateway(Service):
    """The parameter of every endpoint's `routes`: what runs requests, and what the options say."""

    metrics: RequestCounters
    images: ImageStore
    traces: RecentTraces
    following: Following
    client_secrets: TemporaryKeys[Settings]
    keep_alive_s: float = KEEP_ALIVE_S
    max_unsent_bytes: int = MAX_UNSENT_BYTES
    sessions: SessionBounds = DEFAULT_BOUNDS
    has_admin: bool = False
    has_keys: bool = False
