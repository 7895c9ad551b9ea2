"""Each process below the server is killed once, and one engine and one stage hang."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import HELLO, chaos_graph, kill_under_load, ready_again, strike, traces, victims
from support.server import Reply, TinyServer, launch, running_server

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
        ("talker", "worker", KILL),
        ("thinker", "tracker", KILL),
        ("thinker", "engine", STOP),
        ("code2wav", "worker", STOP),
        ("thinker", "worker", KILL),
    ],
)
async def test_only_the_stage_that_was_hit_starts_again(
    stage: str, role: str, blow: signal.Signals, server: TinyServer, expected: Reply
) -> None:
    victim = next(v for v in victims(server) if (v.stage, v.role) == (stage, role))
    await strike(server, victim, blow, expected, within_s=BUSY_S)


async def test_a_killed_server_leaves_nothing_that_the_next_one_does_not_remove(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    killed = launch(str(tiny_checkpoint), tmp_path / "killed")
    await kill_under_load(killed, after_s=25)
    assert traces(killed.process.pid)
    with running_server(str(tiny_checkpoint), tmp_path / "log") as server:
        assert not traces(killed.process.pid)
        assert traces(server.process.pid)
    assert not traces(server.process.pid)
