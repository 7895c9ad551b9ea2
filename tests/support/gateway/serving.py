"""The gateway over fake stages, served by uvicorn in a thread."""

import asyncio
import contextlib
import io
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from support.fakes.stages import SPEAKERS, FakeGraph
from support.waiting import pass_over, wait_until

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Connector
from omnistage.server.app import build_app
from omnistage.server.http.protocol.head_limit import MAX_HEAD_BYTES
from omnistage.server.http.protocol.http_protocol import GATEWAY_PROTOCOL
from omnistage.server.http.protocol.socket_protocol import SOCKETS
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.runtime.request import GraphRequest, Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import Speech

T = TypeVar("T")

MODEL = "tests/fake-omni"
OMNI = {
    "model": MODEL,
    "stages": {
        "thinker": {"kind": "qwen3_omni.thinker"},
        "talker": {"kind": "qwen3_omni.talker"},
        "code2wav": {"kind": "qwen3_omni.code2wav"},
    },
    "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
    "outputs": {"text": "thinker", "audio": "code2wav"},
}
IMAGES = {
    "model": MODEL,
    "stages": {"dit": {"kind": "diffusers"}},
    "edges": [],
    "outputs": {"image": "dit"},
}


def making_videos(stage: str) -> dict[str, Any]:
    """The graph of one fake stage that makes videos."""
    return {
        "model": MODEL,
        "stages": {stage: {"kind": "diffusers"}},
        "edges": [],
        "outputs": {"image": stage, "video": stage},
    }


STUDIO = making_videos("studio")
SYNTH = {
    "model": MODEL,
    "stages": {"synth": {"kind": "diffusers"}},
    "edges": [],
    "outputs": {"audio": "synth"},
}
MIXED = {
    "model": MODEL,
    "stages": {
        "thinker": {"kind": "qwen3_omni.thinker"},
        "talker": {"kind": "qwen3_omni.talker"},
        "code2wav": {"kind": "qwen3_omni.code2wav"},
        "dit": {"kind": "diffusers"},
    },
    "edges": [
        {"from": "thinker", "to": "talker"},
        {"from": "talker", "to": "code2wav"},
        {"from": "thinker", "to": "dit"},
    ],
    "outputs": {"text": "thinker", "audio": "code2wav", "image": "dit"},
}
EMBEDDING = {
    "model": MODEL,
    "stages": {"embedding": {"kind": "vllm.embedding"}},
    "edges": [],
    "outputs": {"embedding": "embedding"},
}
TEXT_ONLY = {
    "model": MODEL,
    "stages": {"thinker": {"kind": "qwen3_omni.thinker"}},
    "edges": [],
    "outputs": {"text": "thinker"},
}


class SharedConnector:
    """One in-process connector for both ends of every channel."""

    def __init__(self, directory: Path, arena_mb: int = 1) -> None:
        self.connector = make_connector("inprocess", directory, {"arena_mb": arena_mb})

    def __call__(self, name: str, directory: Path, options: Any) -> Connector:
        return self.connector


class RunningGateway:
    """A served app, and its stages to look at and disturb."""

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        stages: FakeGraph,
        server: uvicorn.Server,
        runtime: Runtime,
    ) -> None:
        self.url = url
        self.stages = stages
        self.runtime = runtime
        self._loop = loop
        self._server = server

    def stop(self) -> None:
        """What a signal does: it takes nothing new."""
        self._server.should_exit = True

    def do(self, action: Callable[[], T]) -> T:
        """Run something in the gateway's thread."""

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(600)

    def hold(self, seconds: float) -> None:
        """Let the gateway's thread do nothing else for so long, from now on."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def wait_until_waiting(self, count: int = 1) -> None:
        """So many answers wait for a test."""
        wait_until(lambda: self.do(lambda: self.stages.num_waiting) == count)

    def go_on(self) -> None:
        """Let the answers go on that wait now."""
        self.do(self.stages.go_on)

    def pass_over(self, seconds: float) -> None:
        """Set the clock of the gateway's loop forward."""
        self.do(lambda: pass_over(self._loop, seconds))
        self.do(lambda: None)  # its timers that have ended are called

    @property
    def num_asked(self) -> int:
        """How many requests over HTTP are under way."""
        return len(self._server.server_state.tasks)

    def wait_until_idle(self) -> None:
        """No stage has a request."""
        wait_until(lambda: not self.do(lambda: self.stages.running))


@contextlib.contextmanager
def running_gateway(
    directory: Path,
    graph: dict[str, Any],
    loading: frozenset[str] = frozenset(),
    arena_mb: int = 1,
    protocol: type[asyncio.Protocol] = GATEWAY_PROTOCOL,
    sample_rate_hz: int | None = 24_000,
    speech: Speech | None = None,
    speakers: Sequence[str] = SPEAKERS,
    stop_s: int = 1,
    **options: Any,
) -> Iterator[RunningGateway]:
    """Serve until the context ends; `options` are those of GatewayOptions."""
    listening = socket.create_server(("127.0.0.1", 0))
    started: list[tuple[asyncio.AbstractEventLoop, uvicorn.Server, FakeGraph, Runtime]] = []
    is_started = threading.Event()

    async def serve() -> None:
        shared = SharedConnector(directory, arena_mb)
        stages = FakeGraph(shared.connector)
        stages.is_loading = set(loading)
        stages.sample_rate_hz = sample_rate_hz
        stages.speech, stages.speakers = speech, list(speakers)
        parsed = StageGraph.model_validate(graph)
        chosen = GatewayOptions(**options)
        runtime = Runtime(
            parsed,
            directory,
            stages.launch,
            shared,
            chosen.max_requests,
            first_sound_s=chosen.first_sound_s,
        )
        async with runtime:
            app = build_app(runtime, chosen)
            config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", **SOCKETS)
            config.h11_max_incomplete_event_size = MAX_HEAD_BYTES
            if chosen.tls is not None:
                config.ssl_certfile, config.ssl_keyfile = chosen.tls.certificate, chosen.tls.key
            config.timeout_graceful_shutdown = stop_s
            server = uvicorn.Server(config)
            started.append((asyncio.get_running_loop(), server, stages, runtime))
            is_started.set()
            await server.serve(sockets=[listening])

    # A daemon: what does not end fails here and does not keep the suite from ending.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert is_started.wait(600)
    loop, server, stages, runtime = started[0]
    try:
        port = listening.getsockname()[1]
        scheme = "https" if options.get("tls") else "http"
        yield RunningGateway(f"{scheme}://127.0.0.1:{port}", loop, stages, server, runtime)
    finally:
        server.should_exit = True
        thread.join(600)
        assert not thread.is_alive(), f"the gateway does not end: {waiting_in(thread, loop)}"


def waiting_in(thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> str:
    """Where a thread stands, and each task of the loop that it runs."""
    stacks = io.StringIO()
    assert thread.ident is not None
    traceback.print_stack(sys._current_frames()[thread.ident], file=stacks)
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=stacks)
    return stacks.getvalue()


async def outputs_of(runtime: Runtime, request: GraphRequest) -> AsyncGenerator[Output, None]:
    """What an endpoint does: the outputs of a request that has its place meanwhile."""
    with runtime.flights.admit(request.message.outputs) as ticket:
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                yield output
