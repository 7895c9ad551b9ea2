"""The gateway's HTTP application."""

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from omnistage.server.endpoints.admin import admin_routes, closed_routes
from omnistage.server.endpoints.answers import ChatCompletion, TextCompletion
from omnistage.server.endpoints.chat import ChatCompletions
from omnistage.server.endpoints.examples import (
    chat_examples,
    speech_examples,
    text_examples,
    video_examples,
)
from omnistage.server.endpoints.health import health_routes
from omnistage.server.endpoints.image_files import image_file_routes
from omnistage.server.endpoints.images import Images, image_routes
from omnistage.server.endpoints.metrics import Metrics, RequestCount, metrics_routes
from omnistage.server.endpoints.models import model_routes
from omnistage.server.endpoints.speech import CONTENT_TYPES, Speech
from omnistage.server.endpoints.text_completions import TextCompletions
from omnistage.server.endpoints.traces import trace_routes
from omnistage.server.endpoints.transcription import Transcriptions, transcription_routes
from omnistage.server.endpoints.videos import MEDIA_TYPE as VIDEO
from omnistage.server.endpoints.videos import Videos
from omnistage.server.endpoints.voices import voice_routes
from omnistage.server.http.beside_loop import install_threads
from omnistage.server.http.body_limit import BodyLimit
from omnistage.server.http.deadline import Deadline
from omnistage.server.http.error_handlers import install_error_handlers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.keys import KeyGuard, is_guarded
from omnistage.server.http.memory import GivingBack
from omnistage.server.http.openapi import EVENTS, described, install_openapi
from omnistage.server.http.rate_limit import RateLimit
from omnistage.server.http.request_id import RequestId
from omnistage.server.http.state import WithState
from omnistage.server.images.store import ImageStore
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.fetch import MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.load import MediaLoader
from omnistage.server.options import GatewayOptions
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.telemetry.follow import Exporter, Followed
from omnistage.server.telemetry.recent import RecentTraces

DESCRIPTION = "OpenAI's API for models that are graphs of models."
DEFAULTS = GatewayOptions()


def build_app(runtime: Runtime, options: GatewayOptions = DEFAULTS) -> FastAPI:
    """The app over a running runtime."""
    app = FastAPI(title="omnistage", description=DESCRIPTION, redoc_url=None)
    giving_back = GivingBack()
    room = DecodeRoom(options.decode_bytes, giving_back)
    app.add_middleware(BodyLimit, giving_back=giving_back)
    app.add_middleware(Deadline, timeout_s=options.timeout_s)
    if options.requests_per_minute is not None:
        app.add_middleware(RateLimit, per_minute=options.requests_per_minute)
    app.add_middleware(KeyGuard, keys=options.keys)
    app.add_middleware(KeyGuard, keys=options.admin_keys, prefix="/admin")
    app.add_middleware(RequestId)
    install_error_handlers(app)
    install_threads(app)
    app.include_router(health_routes(runtime))
    app.include_router(model_routes(runtime.graph))
    app.include_router(voice_routes(runtime))
    folder = MediaFolder(options.media_path)
    media = MediaLoader(MediaFetcher(options.media_domains), folder, room)
    sending = (options.keep_alive_s, options.max_unsent_bytes)
    chat = ChatCompletions(runtime, media, *sending)
    json_routes = APIRouter(route_class=JsonRoute)
    graph = runtime.graph
    about_chat = described("Answer a conversation", ChatCompletion, (EVENTS,), chat_examples(graph))
    json_routes.post("/v1/chat/completions", **about_chat)(chat.create)
    about_text = described("Go on with a text", TextCompletion, (EVENTS,), text_examples(graph))
    json_routes.post("/v1/completions", **about_text)(TextCompletions(runtime, *sending).create)
    sounds = (*CONTENT_TYPES.values(), EVENTS)
    about_speech = described("Speak a text", also=sounds, examples=speech_examples(graph))
    json_routes.post("/v1/audio/speech", **about_speech)(Speech(runtime, *sending).create)
    about_videos = described("Make a video", also=(VIDEO,), examples=video_examples(graph))
    json_routes.post("/v1/videos/sync", **about_videos)(Videos(runtime).create)
    app.include_router(json_routes)
    store = ImageStore()
    images = Images(runtime, media, store, options.keep_alive_s)
    app.include_router(image_routes(images, graph))
    app.include_router(image_file_routes(store))
    app.include_router(transcription_routes(Transcriptions(runtime, media, *sending)))
    recent = RecentTraces()
    if options.admin_keys:
        app.include_router(admin_routes(runtime))
        app.include_router(trace_routes(recent))
    else:
        app.include_router(closed_routes())
    metrics = Metrics(runtime)
    app.include_router(metrics_routes(metrics))
    endpoints = endpoints_of(app)
    app.add_middleware(RequestCount, metrics=metrics, endpoints=endpoints)
    exporter = exporter_to(options.traces_url)
    app.add_middleware(Followed, recent=recent, exporter=exporter, endpoints=endpoints)
    app.add_middleware(WithState)
    install_openapi(app, has_keys=bool(options.keys))
    return app


def exporter_to(url: str | None) -> Exporter | None:
    """What exports spans; OpenTelemetry is imported for it only where it was asked for."""
    if url is None:
        return None
    from omnistage.server.telemetry.spans import SpanExport

    return SpanExport(url)


def endpoints_of(app: FastAPI) -> frozenset[str]:
    """The paths of the API that take a POST."""
    routes = (route for route in app.routes if isinstance(route, APIRoute))
    return frozenset(
        route.path for route in routes if "POST" in route.methods and is_guarded(route.path)
    )
