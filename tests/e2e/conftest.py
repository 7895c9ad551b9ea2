"""One server for all end-to-end tests, each for the whole session."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from support.chaos import open_files
from support.openai_answers import strict_client
from support.prompts import image_part, picture, sound, sound_part, text, video_bytes, video_part
from support.server import TinyServer, running_server

SETTLE_S = 5.0


@pytest.fixture(scope="session")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files below it may be named in requests."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, server_log: Path, media_folder: Path) -> Iterator[TinyServer]:
    options = ("--allowed-media-path", str(media_folder))
    with running_server(str(tiny_checkpoint), server_log, *options) as running:
        asyncio.run(warm_up(running))
        yield running


@pytest.fixture(scope="session")
def client(server: TinyServer) -> Iterator[OpenAI]:
    """OpenAI's own, strict."""
    with strict_client(server.url) as connected:
        yield connected


async def warm_up(server: TinyServer) -> None:
    """Ask with every medium once: what a process opens for its whole life is open then."""
    parts = [
        image_part(picture(64, 64, seed=9)),
        sound_part(sound(4800)),
        video_part(video_bytes(num_frames=2, size=32)),
    ]
    for part in parts:
        await server.ask([{"role": "user", "content": [part, text("What?")]}])


@pytest.fixture(autouse=True)
async def nothing_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After each test no stage holds anything for a request, and no descriptor more is open."""
    if "server" not in request.fixturenames:
        yield
        return
    server: TinyServer = request.getfixturevalue("server")
    before = open_files(server)
    generations = {name: stage["generation"] for name, stage in server.health().items()}
    yield
    deadline = time.monotonic() + SETTLE_S
    while left := what_is_left(server, before, generations):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)


def what_is_left(
    server: TinyServer, before: dict[str, int], generations: dict[str, int]
) -> dict[str, object]:
    """Counts that are not zero, by stage, and processes with more descriptors than before."""
    health = server.health()
    left: dict[str, object] = {}
    for name, stage in health.items():
        held = {what: count for what, count in stage["held"].items() if count}
        if held:
            left[name] = held
    if generations == {name: stage["generation"] for name, stage in health.items()}:
        now = open_files(server)
        left |= {name: count for name, count in now.items() if count > before[name]}
    return left
