"""Processes below the server are killed, with requests and without; an engine and a stage hang.

The folder that is served has no weights: dummy ones are the same in each life of a stage.
"""

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fakes.served import Served
from support.faults.chaos import (
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
from support.servers.server import STOP_S, Reply, TinyServer, assert_same_sound, running_server

pytestmark = pytest.mark.engine

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
BUSY_S = 60.0  # how fast it is, is for `make chaos` on a quiet machine


WANTED = {
    "thinker": r"cpu, float32, seed 0; at least 0\.\d\d GiB wanted \(layers .*, KV cache 0\.06\)",
    "talker": r"cpu, float32, seed 0; at least 0\.\d\d GiB wanted \(layers .*, KV cache 0\.06\)",
    "code2wav": r"cpu, float32, no seed; at least 0\.\d\d GiB wanted \(weights .*, slots .*\)",
}
EXACT_LENGTH = {
    "max_completion_tokens": 8,
    "stage_params": {
        "thinker": {"ignore_eos": True},
        "talker": {"temperature": 0, "max_tokens": 12, "ignore_eos": True},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, folder: Path) -> Iterator[TinyServer]:
    """The tiny model without its weights, with dummy ones."""
    model = folder / "model"
    shutil.copytree(tiny_checkpoint, model, ignore=shutil.ignore_patterns("*.safetensors"))
    options = ("--model", str(model), "--load-format", "dummy")
    with running_server(str(chaos_graph(folder)), folder / "log", *options) as running:
        yield running


async def test_a_folder_without_weights_answers_the_same_each_time(
    server: TinyServer, folder: Path
) -> None:
    """The first test of this file: the log is that of one start."""
    messages = [{"role": "user", "content": "Hello"}]
    first, second = [await server.ask(messages, **EXACT_LENGTH) for _ in range(2)]
    assert first.raw["usage"]["completion_tokens"] == 8 + 12
    assert first.codes.shape == (12, 4)
    assert len(np.unique(first.codes)) > 4
    assert len(first.pcm) == 12 * 1920 - 555
    assert first.text == second.text
    assert np.array_equal(first.codes, second.codes)
    assert_same_sound(first.pcm, second.pcm)
    log = (folder / "log").read_text()
    for stage, wanted in WANTED.items():  # each says once what it wants and what is free
        (line,) = re.findall(rf"stage {stage}: (.* wanted .*)", log)
        assert re.fullmatch(rf"{wanted}, [1-9]\d*\.\d\d GiB free", line)


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
        ("code2wav", "importer", KILL),
        pytest.param("thinker", "importer", KILL, marks=pytest.mark.repeat),
        pytest.param("code2wav", "worker", STOP, marks=pytest.mark.repeat),
        pytest.param("thinker", "worker", KILL, marks=pytest.mark.repeat),
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
    server: TinyServer, expected: Reply, tmp_path: Path
) -> None:
    """The last test of this file: it ends the file's server. The next may serve any model."""
    pid = server.process.pid
    with kept_folders(pid):  # servers of other tests start meanwhile
        await kill_under_load(server, after_s=3, within_s=BUSY_S)
        assert traces(pid)
    following = Served(tmp_path / "log").process
    try:
        assert not traces(pid)
        assert traces(following.pid)
    finally:
        following.terminate()
        following.wait(STOP_S)
    assert not traces(following.pid)
