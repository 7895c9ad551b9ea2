"""The gateway's HTTP application."""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from omnistage.server.common.memory import GivingBack
from omnistage.server.endpoints import models
from omnistage.server.endpoints.audio import (
    audio_generation,
    audio_models,
    speech,
    speech_stream,
    stored_voices,
    transcription,
    voices,
)
from omnistage.server.endpoints.counters import RequestCount
from omnistage.server.endpoints.gateway import Gateway, make_gateway
from omnistage.server.endpoints.images import image_files, images
from omnistage.server.endpoints.operation import (
    admin,
    health,
    home,
    lora_adapters,
    metrics,
    traces,
    version,
)
from omnistage.server.endpoints.realtime import client_secrets, realtime, realtime_calls
from omnistage.server.endpoints.text import (
    chat,
    embeddings,
    invocations,
    responses,
    text_completions,
    tokens,
)
from omnistage.server.endpoints.videos import video_edits, video_jobs, videos
from omnistage.server.http.access.cors import SocketOrigins
from omnistage.server.http.access.keys import ADMIN, KeyGuard, is_guarded
from omnistage.server.http.access.rate_limit import RateLimit
from omnistage.server.http.body_limit import BodyLimit
from omnistage.server.http.deadline import Deadline
from omnistage.server.http.docs_page import install_docs
from omnistage.server.http.error_handlers import install_error_handlers
from omnistage.server.http.openapi import OF_THE_API, WITH_KEY, DescribedApp, errors
from omnistage.server.http.protocol.head_limit import HeadLimit
from omnistage.server.http.protocol.socket_protocol import CALLS, REALTIME
from omnistage.server.http.request import install_threads
from omnistage.server.http.request_id import RequestId
from omnistage.server.http.root_path import BelowRoot
from omnistage.server.http.state import WithState
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.telemetry.follow import Followed
from omnistage.stage_configs.packages import installed

DESCRIPTION = (
    "OpenAI's API for models that are graphs of models. OpenAPI has no WebSockets: /v1/realtime is "
    "described in docs/realtime.md, /v1/audio/speech/stream in docs/api.md."
)
DEFAULTS = GatewayOptions()

Routes = Callable[[Gateway], APIRouter]
Tagged = Mapping[Routes, str]
# Every endpoint, with its tag in the description. `is_guarded` judges by the path who needs a key;
# these groups say it in the description.
GUARDED: Tagged = {
    chat.routes: "Chat",
    responses.routes: "Responses",
    text_completions.routes: "Completions",
    speech.routes: "Audio",
    audio_generation.routes: "Audio",
    transcription.routes: "Audio",
    stored_voices.routes: "Audio",
    audio_models.routes: "Audio",
    client_secrets.routes: "Realtime",
    realtime_calls.routes: "Realtime",
    images.routes: "Images",
    videos.routes: "Videos",
    video_jobs.routes: "Videos",
    video_edits.routes: "Videos",
    embeddings.routes: "Embeddings",
    tokens.routes: "Tokens",
    invocations.routes: "Chat",
    models.routes: "Models",
}
WITHOUT_KEY: Tagged = {voices.routes: "Audio", image_files.routes: "Images"}
BESIDE_THE_API: Tagged = {
    home.routes: "Server",
    health.routes: "Server",
    metrics.routes: "Server",
    version.routes: "Server",
    traces.routes: "Server",
    admin.routes: "Admin",
    lora_adapters.routes: "Admin",
}
SOCKETS: tuple[Routes, ...] = (realtime.routes, speech_stream.routes)  # they want a key as well


def build_app(runtime: Runtime, options: GatewayOptions = DEFAULTS) -> FastAPI:
    """The app over a running runtime."""
    app = DescribedApp(
        title="omnistage",
        version=installed("omnistage"),
        description=DESCRIPTION,
        root_path=options.root_path,
    )
    install_docs(app)
    giving_back = GivingBack()
    gateway = make_gateway(runtime, options, giving_back)
    install_error_handlers(app)
    install_threads(app)
    include_endpoints(app, gateway, has_keys=bool(options.keys))
    app.add_middleware(BodyLimit, giving_back=giving_back)
    app.add_middleware(Deadline, timeout_s=options.timeout_s)
    if options.requests_per_minute is not None:
        app.add_middleware(RateLimit, per_minute=options.requests_per_minute)
    secrets = gateway.client_secrets
    app.add_middleware(KeyGuard, keys=options.keys, temporary=secrets, opened=(REALTIME, CALLS))
    app.add_middleware(KeyGuard, keys=options.admin_keys, prefix=ADMIN)
    origins = () if options.cors is None else options.cors.origins
    app.add_middleware(SocketOrigins, origins=origins)
    app.add_middleware(HeadLimit)
    app.add_middleware(RequestId)
    endpoints = endpoints_of(app)
    app.add_middleware(RequestCount, metrics=gateway.metrics, endpoints=endpoints)
    app.add_middleware(Followed, following=gateway.following, endpoints=endpoints)
    app.add_middleware(WithState)
    if options.cors is not None:
        app.add_middleware(options.cors.middleware)
    if options.root_path:
        app.add_middleware(BelowRoot, root_path=options.root_path)
    return app


def include_endpoints(app: FastAPI, gateway: Gateway, has_keys: bool) -> None:
    """Put every endpoint into an app, with what the description says of all of its kind."""
    of_the_api = errors(*OF_THE_API)
    key = [WITH_KEY] if has_keys else []
    for routes, tag in GUARDED.items():
        router = routes(gateway)
        app.include_router(router, tags=[tag], responses=of_the_api, dependencies=key)
    for routes, tag in WITHOUT_KEY.items():
        app.include_router(routes(gateway), tags=[tag], responses=of_the_api)
    for routes, tag in BESIDE_THE_API.items():
        app.include_router(routes(gateway), tags=[tag])
    for routes in SOCKETS:
        app.include_router(routes(gateway))


def endpoints_of(app: FastAPI) -> frozenset[str]:
    """The paths of the API that take a POST."""
    routes = (route for route in app.routes if isinstance(route, APIRoute))
    return frozenset(
        route.path
        for route in routes
        if "POST" in route.methods and is_guarded(route.path, method="POST")
    )
