"""The gateway's HTTP application."""

from fastapi import APIRouter, FastAPI

from omnistage.server.admin import admin_routes, closed_routes
from omnistage.server.body_limit import BodyLimit
from omnistage.server.chat import ChatCompletions
from omnistage.server.errors import install_error_handlers
from omnistage.server.health import health_routes
from omnistage.server.image_store import ImageStore, image_file_routes
from omnistage.server.images import Images
from omnistage.server.json_body import JsonRoute
from omnistage.server.models import model_routes
from omnistage.server.orchestrator import Orchestrator
from omnistage.server.request_id import RequestId
from omnistage.server.speech import Speech
from omnistage.server.sse import KEEP_ALIVE_S, MAX_UNSENT_BYTES
from omnistage.server.text_completions import TextCompletions
from omnistage.server.transcription import Transcriptions, transcription_routes
from omnistage.server.videos import Videos
from omnistage.server.voices import voice_routes


def build_app(
    orchestrator: Orchestrator,
    keep_alive_s: float = KEEP_ALIVE_S,
    max_unsent_bytes: int = MAX_UNSENT_BYTES,
) -> FastAPI:
    """The app over a running orchestrator."""
    app = FastAPI(title="omnistage", docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit)
    app.add_middleware(KeyGuard, keys=options.keys)
    app.add_middleware(KeyGuard, keys=options.admin_keys, prefix="/admin")
    app.add_middleware(RequestId)
    install_error_handlers(app)
    app.include_router(health_routes(orchestrator))
    app.include_router(model_routes(orchestrator.graph.model))
    app.include_router(voice_routes(orchestrator))
    store = ImageStore()
    chat = ChatCompletions(orchestrator, keep_alive_s, max_unsent_bytes)
    json_routes = APIRouter(route_class=JsonRoute)
    json_routes.post("/v1/chat/completions", response_model=None)(chat.create)
    text = TextCompletions(orchestrator, keep_alive_s, max_unsent_bytes)
    json_routes.post("/v1/completions", response_model=None)(text.create)
    images = Images(orchestrator, store, keep_alive_s)
    json_routes.post("/v1/images/generations", response_model=None)(images.generate)
    speech = Speech(orchestrator, keep_alive_s, max_unsent_bytes)
    json_routes.post("/v1/audio/speech", response_model=None)(speech.create)
    json_routes.post("/v1/videos/sync", response_model=None)(Videos(orchestrator).create)
    app.include_router(json_routes)
    app.post("/v1/images/edits", response_model=None)(images.edit)
    app.include_router(image_file_routes(store))
    transcriptions = Transcriptions(orchestrator, keep_alive_s, max_unsent_bytes)
    app.include_router(transcription_routes(transcriptions))
    app.include_router(admin_routes(orchestrator) if options.admin_keys else closed_routes())
    return app
