"""Serves the page, and beside it the sounds on their way."""

import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from socket import socket

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it when it is imported

import gradio as gr
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import Response, StreamingResponse
from rich.console import Console

from omnistage.demo import assets
from omnistage.demo.backend import Backend
from omnistage.demo.files import FileStore
from omnistage.demo.page import build_page
from omnistage.demo.sound import GrowingSound, LatestSounds, wav
from omnistage.demo.talk import add_talk

MAX_FILE = "32mb"
SAMPLES = "application/octet-stream"
STOP_S = 1


def build_app(backend: Backend) -> FastAPI:
    """The page at /, sounds at /sound/ID, conversations at /talk."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with backend.client:
            yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_sounds(app, backend.sounds)
    add_talk(app, backend)
    gr.mount_gradio_app(
        app,
        build_page(backend),
        path="/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        max_file_size=MAX_FILE,
        theme=assets.theme(),
        css=assets.CSS,
    )
    return app


def add_sounds(app: FastAPI, sounds: LatestSounds) -> None:
    """Add GET /sound/{id}, samples as they arrive, and /sound/{id}.wav, those that are there."""

    def find(sound_id: str) -> GrowingSound:
        found = sounds.find(sound_id)
        if found is None:
            raise HTTPException(404, "This audio is no longer kept.")
        return found

    @app.get("/sound/{sound_id}.wav")
    async def file(sound_id: str) -> Response:
        return Response(wav(find(sound_id).samples), media_type="audio/wav")

    @app.get("/sound/{sound_id}")
    async def sound(sound_id: str) -> StreamingResponse:
        return StreamingResponse(find(sound_id).read(), media_type=SAMPLES)


def serve(url: str, api_key: str | None, listening: socket, address: str) -> None:
    """Serve the page until Ctrl-C or SIGTERM; its files go with it.

    `address`: where the page can be opened, which is printed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises it again at its end
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="omnistage-demo-") as folder,
    ):
        os.environ["GRADIO_TEMP_DIR"] = folder
        backend = Backend.connect(url, api_key, FileStore(Path(folder)))
        # Gradio prints what fails in it; uvicorn would tell of every page that is open at the end.
        config = uvicorn.Config(build_app(backend), log_level="critical")
        config.timeout_graceful_shutdown = STOP_S
        Announced(config, address).run([listening])


class Announced(uvicorn.Server):
    """Says where the page is once it can be opened."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        Console().print(f"The page is at {self._address}", highlight=False)
