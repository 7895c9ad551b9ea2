"""Common parts of the endpoints of one app."""

from dataclasses import dataclass

from omnistage.server.common.memory import GivingBack
from omnistage.server.endpoints.counters import RequestCounters
from omnistage.server.http.access.temporary_keys import TemporaryKeys
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.fetch import MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.load import MediaLoader
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.realtime.settings import Settings
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.images.store import ImageStore
from omnistage.server.tasks.service import Service
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.server.tasks.video_jobs import VideoJobs
from omnistage.server.tasks.videos.job_store import VideoStore
from omnistage.server.telemetry.follow import Following, TraceExporter
from omnistage.server.telemetry.recent import RecentTraces


@dataclass(frozen=True, slots=True)
class Gateway(Service):
    """The parameter of every endpoint's `routes`: what runs requests, and the server's options."""

    metrics: RequestCounters
    images: ImageStore
    videos: VideoJobs
    traces: RecentTraces
    following: Following
    client_secrets: TemporaryKeys[Settings]
    options: GatewayOptions


def make_gateway(runtime: Runtime, options: GatewayOptions, giving_back: GivingBack) -> Gateway:
    """Return what the endpoints share, as the options say."""
    traces = RecentTraces()
    fetcher, folder = MediaFetcher(options.media_domains), MediaFolder(options.media_path)
    media = MediaLoader(fetcher, folder, DecodeRoom(options.decode_bytes, giving_back))
    voices, kept = StoredVoices(options.voices_path), options.videos
    store = VideoStore(kept.folder, kept.max_bytes, kept.max_age_s)
    return Gateway(
        runtime,
        media,
        voices,
        RequestCounters(runtime),
        ImageStore(),
        VideoJobs(Service(runtime, media, voices), store, kept.max_queue, kept.at_once),
        traces,
        Following(traces, exporter_to(options.traces_url)),
        TemporaryKeys(),
        options,
    )


def exporter_to(url: str | None) -> TraceExporter | None:
    """Return what exports spans; OpenTelemetry is imported only where there is a URL."""
    if url is None:
        return None
    from omnistage.server.telemetry.spans import SpanExport

    return SpanExport(url)
