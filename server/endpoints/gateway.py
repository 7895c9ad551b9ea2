"""Common parts of the endpoints of one app."""

from dataclasses import dataclass

from omnistage.server.endpoints.counters import RequestCounters
from omnistage.server.http.temporary_keys import TemporaryKeys
from omnistage.server.options import GatewayOptions
from omnistage.server.realtime.settings import Settings
from omnistage.server.tasks.images.store import ImageStore
from omnistage.server.tasks.service import Service
from omnistage.server.telemetry.follow import Following
from omnistage.server.telemetry.recent import RecentTraces


@dataclass(frozen=True, slots=True)
class Gateway(Service):
    """The parameter of every endpoint's `routes`: what runs requests, and the server's options."""

    metrics: RequestCounters
    images: ImageStore
    traces: RecentTraces
    following: Following
    client_secrets: TemporaryKeys[Settings]
    options: GatewayOptions
