"""`Omni` over fake stages, and the server's answers over the same stages."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from support.fake_stages import FakeGraph, FakeStage
from support.gateway import SharedConnector

from omnistage import AsyncOmni, Omni
from omnistage.server.app import build_app
from omnistage.server.http.half_open import GATEWAY_PROTOCOL
from omnistage.server.offline.engine import Engine
from omnistage.stage_configs.graph import StageGraph


class FakeStages:
    """What starts fake stages in the loop of an `Omni`; `graph` is there once it has started."""

    graph: FakeGraph

    def __init__(self, directory: Path, arena_mb: int = 16) -> None:
        self.connector = SharedConnector(directory, arena_mb)
        self._is_begun = False

    def launch(self, name: str, directory: Path) -> FakeStage:
        if not self._is_begun:
            self._is_begun = True
            self.graph = FakeGraph(self.connector.connector)
        return self.graph.launch(name, directory)


def fake_omni(stages: FakeStages, graph: dict[str, Any], **options: Any) -> Omni:
    parsed = StageGraph.model_validate(graph)
    return Omni(parsed, _launch=stages.launch, _make_connector=stages.connector, **options)


def fake_async_omni(stages: FakeStages, graph: dict[str, Any], **options: Any) -> AsyncOmni:
    parsed = StageGraph.model_validate(graph)
    return AsyncOmni(parsed, _launch=stages.launch, _make_connector=stages.connector, **options)


def engine_of(omni: Omni) -> Engine:
    return omni._omni._engine


@contextlib.contextmanager
def served(omni: Omni) -> Iterator[str]:
    """The address of a server over the stages of an `Omni`."""
    app = build_app(engine_of(omni).runtime)
    config = uvicorn.Config(app, http=GATEWAY_PROTOCOL, ws="none", log_config=None, lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.run_coroutine_threadsafe(
            server.serve(sockets=[listening]), omni._thread._loop
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            serving.result(10)
