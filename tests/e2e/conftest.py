"""One server for all end-to-end tests, each for the whole session."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI
from support.chaos import open_files, open_targets
from support.collector import Collector, running_collector
from support.openai_answers import strict_client
from support.server import (
    ADMIN_KEY,
    MAX_QUEUE,
    RUNNING,
    SETTLE_S,
    TinyServer,
    running_server,
)
from support.warm_up import warm_up, warm_up_again

from omnistage.stage_configs.pick import GRAPHS


@pytest.fixture(scope="session")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files below it may be named in requests."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stages write their profiles."""
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Where the server and its engines export their spans."""
    with running_collector() as running:
        yield running


@pytest.fixture(scope="session")
def server(
    tiny_checkpoint: Path,
    collector: Collector,
    server_log: Path,
    media_folder: Path,
    profiles: Path,
) -> Iterator[TinyServer]:
    """The tiny model, with an admin key, traces, profilers that run when they are told to, and a
    queue that a test can fill.
    """
    options = ["--model", str(tiny_checkpoint), "--admin-key", ADMIN_KEY]
    options += ["--allowed-media-path", str(media_folder), "--otlp-endpoint", collector.url]
    options += ["--max-queue", str(MAX_QUEUE), "--profile-folder", str(profiles)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with running_server(str(GRAPHS / "qwen3_omni_tiny.yaml"), server_log, *options) as running:
            asyncio.run(warm_up(running))
            yield running


@pytest.fixture(scope="session")
def client(server: TinyServer) -> Iterator[OpenAI]:
    """OpenAI's own, strict."""
    with strict_client(server.url) as connected:
        yield connected


@dataclass(frozen=True)
class Opened:
    """How many descriptors each process of a server has open, and which process it is."""

    files: dict[str, int]
    generations: dict[str, int]

    @classmethod
    def by(cls, server: TinyServer) -> "Opened":
        """As it is now."""
        return cls(open_files(server), server.generations())

    def more(self, server: TinyServer) -> dict[str, int]:
        """Processes with more than then; none if a stage has started again meanwhile."""
        now = Opened.by(server)
        if now.generations != self.generations:
            return {}
        return {name: n for name, n in now.files.items() if n > self.files.get(name, n)}


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """After each test no stage of any server holds anything for a request, or has more open."""
    for server in RUNNING:
        await warm_up_again(server)
    before = {server: Opened.by(server) for server in RUNNING}
    yield
    deadline = time.monotonic() + SETTLE_S
    while left := what_is_left(before):
        assert time.monotonic() < deadline, (left, [open_targets(server) for server in RUNNING])
        await asyncio.sleep(0.05)


def what_is_left(before: Mapping[TinyServer, Opened]) -> dict[str, object]:
    """What each server holds, and its processes with more descriptors than before."""
    alive = [server for server in before if not server.is_killed]
    held = {f"held at {server.url}": server.held() for server in alive}
    more = {f"open at {server.url}": before[server].more(server) for server in alive}
    return {what: found for what, found in {**held, **more}.items() if found}
