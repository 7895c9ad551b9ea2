"""One server for all end-to-end tests, each for the whole session."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from openai import OpenAI
from support.api.openai_answers import strict_client
from support.blocked import packages_of_others, without
from support.faults.chaos import open_files, open_targets
from support.servers.collector import Collector, running_collector
from support.servers.drafting import drafting_server
from support.servers.image_requests import bare_pipeline, picture_server
from support.servers.server import (
    ADMIN_KEY,
    MAX_QUEUE,
    RUNNING,
    SETTLE_S,
    TinyServer,
    running_server,
)
from support.servers.warm_up import warm_up, warm_up_again

from omnistage import Omni
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
            running.fixture = "server"
            yield running


@pytest.fixture(scope="session")
def whole_edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the tiny graph with edges that carry everything in one chunk."""
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    for edge in graph["edges"]:
        edge["chunk"] = "whole"
    file = tmp_path_factory.mktemp("graphs") / "whole.yaml"
    file.write_text(yaml.safe_dump(graph))
    return file


@pytest.fixture(scope="session")
def omni(tiny_checkpoint: Path, whole_edges: Path) -> Iterator[Omni]:
    """The tiny model in this process, with whole edges; all that it starts is gone at its end."""
    before, folders_before = own_processes(), own_folders()
    with Omni(
        tiny_checkpoint,
        graph=whole_edges,
        stages={"thinker": {"max_num_seqs": 8}},
        deadlines={"first_chunk_s": 600.0, "next_chunk_s": 300.0},
        progress=False,
    ) as running:
        started = own_processes() - before
        assert len(started) >= 3
        (folder,) = own_folders() - folders_before
        yield running
    assert not psutil.wait_procs(started, timeout=SETTLE_S)[1]
    assert not folder.exists()


def own_processes() -> set[psutil.Process]:
    """Return all that this process has started."""
    return set(psutil.Process().children(recursive=True))


def own_folders() -> set[Path]:
    """Return the run folders of this process in memory."""
    return set(Path("/dev/shm").glob(f"omnistage-{os.getpid()}-*"))


@pytest.fixture(scope="session")
def drafting(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """The tiny model with drafts and TCP. Nobody kills its stages."""
    with drafting_server(tiny_checkpoint, tmp_path_factory.mktemp("drafting")) as running:
        running.fixture = "drafting"
        yield running


@pytest.fixture(scope="session")
def images_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the server of images."""
    return tmp_path_factory.mktemp("images") / "log"


@pytest.fixture(scope="session")
def images(tiny_qwen_image: Path, images_log: Path) -> Iterator[TinyServer]:
    """The tiny Qwen-Image with an admin key, where only the packages are that it needs."""
    missing = [*packages_of_others("diffusers"), "transformers.models.qwen3_omni_moe"]
    folder, key = images_log.parent, ("--admin-key", ADMIN_KEY)
    with ExitStack() as servers:
        with pytest.MonkeyPatch.context() as patch:  # other servers begin later
            for name, value in without(folder / "site", missing).items():
                patch.setenv(name, value)
            serving = picture_server("diffusers.yaml", tiny_qwen_image, folder, *key)
            running = servers.enter_context(serving)
        running.fixture = "images"
        yield running


@pytest.fixture(scope="session")
def bare(tiny_qwen_image: Path) -> Any:
    """The bare pipeline of the tiny Qwen-Image."""
    return bare_pipeline(tiny_qwen_image)


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
        return cls(open_files(server), server.generations())

    def more(self, server: TinyServer) -> dict[str, int]:
        """Processes with more than then; none if a stage has started again meanwhile."""
        now = Opened.by(server)
        if now.generations != self.generations:
            return {}
        return {name: n for name, n in now.files.items() if n > self.files.get(name, n)}


@pytest.fixture(autouse=True)
async def nothing_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After each test no stage of its servers holds anything for a request, or has more open."""
    used = [one for one in RUNNING if one.fixture in (None, *request.fixturenames)]
    for server in used:
        await warm_up_again(server)
    before = {server: Opened.by(server) for server in used}
    yield
    deadline = time.monotonic() + SETTLE_S
    while left := what_is_left(before):
        assert time.monotonic() < deadline, (left, [open_targets(server) for server in used])
        await asyncio.sleep(0.05)


def what_is_left(before: Mapping[TinyServer, Opened]) -> dict[str, object]:
    """What each server holds, and its processes with more descriptors than before."""
    alive = [server for server in before if not server.is_killed]
    held = {f"held at {server.url}": server.held() for server in alive}
    more = {f"open at {server.url}": before[server].more(server) for server in alive}
    return {what: found for what, found in {**held, **more}.items() if found}
