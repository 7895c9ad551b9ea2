"""Processes below the server are killed, with requests and without; an engine and a stage hang."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import (
    HELLO,
    chaos_graph,
    kept_folders,
    kill_idle,
    kill_under_load,
    ready_again,
    strike,
    traces,
    victims,
)
from support.image_requests import picture_server
from support.server import Reply, TinyServer, running_server

pytestmark = pytest.mark.engine

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
BUSY_S = 15.0  # how fast it is, is for `make chaos` on a quiet machine


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("chaos")
    options = ("--model", str(tiny_checkpoint))
    with running_server(str(chaos_graph(folder)), folder / "log", *options) as running:
        yield running


@pytest.fixture
async def expected(server: TinyServer) -> Reply:
    await ready_again(server)
    return await server.ask(HELLO)


@pytest.mark.parametrize(
    ("stage", "role", "blow"),
    [
        ("talker", "engine", KILL),
        ("code2wav", "worker", KILL),
        ("thinker", "tracker", KILL),
        ("thinker", "engine", STOP),
        ("code2wav", "worker", STOP),
        ("thinker", "worker", KILL),
        pytest.param("talker", "worker", KILL, marks=pytest.mark.repeat),
    ],
)
async def test_only_the_stage_that_was_hit_starts_again(
    stage: str, role: str, blow: signal.Signals, server: TinyServer, expected: Reply
) -> None:
    victim = next(v for v in victims(server) if (v.stage, v.role) == (stage, role))
    await strike(server, victim, blow, expected, within_s=BUSY_S)


async def test_a_stage_that_is_killed_while_nothing_runs_starts_again(
    server: TinyServer, expected: Reply
) -> None:
    victim = next(v for v in victims(server) if (v.stage, v.role) == ("talker", "engine"))
    await kill_idle(server, victim, expected, within_s=BUSY_S)


async def test_a_server_killed_under_load_leaves_nothing_that_the_next_one_does_not_remove(
    server: TinyServer, expected: Reply, tiny_qwen_image: Path, tmp_path: Path
) -> None:
    """The last test of this file: it ends the file's server. The next may serve any model."""
    pid = server.process.pid
    with kept_folders(pid):  # servers of other tests start meanwhile
        await kill_under_load(server, after_s=3)
        assert traces(pid)
    with picture_server("diffusers.yaml", tiny_qwen_image, tmp_path) as following:
        assert not traces(pid)
        assert traces(following.process.pid)
    assert not traces(following.process.pid)
