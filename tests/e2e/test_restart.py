"""Each process below the server is killed once, and one engine and one stage hang."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import HELLO, chaos_graph, strike, victims
from support.server import Reply, TinyServer, running_server

pytestmark = pytest.mark.engine

KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("chaos")
    options = ("--model", str(tiny_checkpoint))
    with running_server(str(chaos_graph(folder)), folder / "log", *options) as running:
        yield running


@pytest.fixture
async def expected(server: TinyServer) -> Reply:
    return await server.ask(HELLO)


@pytest.mark.parametrize(
    ("stage", "role", "blow"),
    [
        ("talker", "engine", KILL),
        ("code2wav", "worker", KILL),
        ("talker", "worker", KILL),
        ("thinker", "helper", KILL),
        ("thinker", "engine", STOP),
        ("code2wav", "worker", STOP),
        ("thinker", "worker", KILL),
    ],
)
async def test_only_the_stage_that_was_hit_starts_again(
    stage: str, role: str, blow: signal.Signals, server: TinyServer, expected: Reply
) -> None:
    victim = next(v for v in victims(server) if (v.stage, v.role) == (stage, role))
    await strike(server, victim, blow, expected)
