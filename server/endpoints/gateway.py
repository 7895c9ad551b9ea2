"""What the endpoints of one app share."""

from dataclasses import dataclass

from omnistage.server.endpoints.counters import Metrics
from omnistage.server.http.sse import KEEP_ALIVE_S, MAX_UNSENT_BYTES
from omnistage.server.images.store import ImageStore
from omnistage.server.media.load import MediaLoader
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.speech.stored_voices import StoredVoices
from omnistage.server.telemetry.follow import Following
from omnistage.server.telemetry.recent import RecentTraces


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parameter of every endpoint's `routes`: what runs requests, and what the options say."""

    runtime: Runtime
    media: MediaLoader
    metrics: Metrics
    images: ImageStore
    traces: RecentTraces
    voices: StoredVoices
    following: Following
    keep_alive_s: float = KEEP_ALIVE_S
    max_unsent_bytes: int = MAX_UNSENT_BYTES
    has_admin: bool = False
    has_keys: bool = False
