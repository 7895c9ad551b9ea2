"""`Omni` over fake stages, and the server's answers over the same stages."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from support.fakes.stages import FakeGraph, FakeStage
from support.gateway.serving import SharedConnector

from omnistage import AsyncOmni, Omni
from omnistage.server.app import build_app
from omnistage.server.http.protocol.http_protocol import GATEWAY_PROTOCOL
from omnistage.server.offline.engine import Engine
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import CommandResult

SPOKEN = ["text", "audio"]


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


COMMANDS = (
    *("sleep", "wake", "load_weights"),
    *("add_lora", "remove_lora", "pin_lora", "list_loras"),
)


class ObedientStages(FakeStages):
    """Stages that take every command but those of `refusals`, and remember what they were told."""

    def __init__(self, directory: Path, refusals: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self.commands = {**dict.fromkeys(COMMANDS, ""), **(refusals or {})}
        self.told: list[tuple[str, str, Mapping[str, Any]]] = []
        self._adapters: dict[str, dict[str, dict[str, Any]]] = {}

    def launch(self, name: str, directory: Path) -> FakeStage:
        stage = super().launch(name, directory)
        self.graph.commands, self.graph.loras, self.graph.obey = self.commands, [], self.obey
        return stage

    def obey(self, stage: str, command: str, arguments: Mapping[str, Any]) -> CommandResult:
        self.told.append((stage, command, arguments))
        if not command.endswith(("_lora", "_loras")):
            return CommandResult({"asleep": ["weights"] if command == "sleep" else []})
        there = self._adapters.setdefault(stage, {})
        name = arguments.get("name", "")
        if command == "add_lora":
            there[name] = {"name": name, "path": arguments["path"], "rank": 8}
        if command in ("add_lora", "pin_lora"):
            there[name]["pinned"] = arguments["pinned"]
        if command == "remove_lora":
            del there[name]
        return CommandResult({"loras": list(there.values())})


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
            serving.result(600)
