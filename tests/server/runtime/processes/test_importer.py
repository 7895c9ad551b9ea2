"""Stages that are forked: what the server learns of them, and that nothing of them is left."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from omnistage.server.runtime.processes import importer as importing
from omnistage.server.runtime.processes.importer import Importer, Importers
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

# What stages/worker/worker.py does, without its imports and its stages.
STAND_IN = """
import os, signal, socket, sys
from omnistage.stages.worker.process.forking import fork_stages
from omnistage.stages.worker.process.lifetime import PARENT, STAGE_MARK, begin_fork, end_with_parent
os.environ |= {STAGE_MARK: "any", PARENT: str(os.getppid())}
end_with_parent()
os.register_at_fork(after_in_child=begin_fork)
if "HELD" in os.environ:
    print("held", flush=True)
    signal.pause()
stage = fork_stages(socket.socket(fileno=0), lambda stage: None)
is_leader = os.getsid(0) == os.getpgid(0) == os.getpid()
print(os.getpid(), os.getppid(), is_leader, os.readlink("/proc/self/fd/0"), flush=True)
if stage == "fails":
    sys.exit(3)
signal.pause()
"""


class Forked:
    """Stages that one importer forks."""

    def __init__(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.environment: dict[str, str] = {}
        self._directory = directory
        self._caplog = caplog
        self._stages: list[StageProcess] = []
        self.importer = Importer(["talker"], directory, self.environment)

    async def start(self, name: str) -> StageProcess:
        """Start one; it may be forked later."""
        stage = StageProcess(name, self._directory, fork=self.importer.fork)
        await stage.start()
        self._stages.append(stage)
        return stage

    async def told(self, stage: StageProcess) -> list[str]:
        """Return its id, its parent's, whether it leads its session, and its input."""
        await until(lambda: self.lines(stage.name))
        return self.lines(stage.name)[-1].split()

    def lines(self, name: str) -> list[str]:
        """Return what was logged of it."""
        records = self._caplog.records
        return [one.message for one in records if getattr(one, "stage", None) == name]

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(stage.stop(0) for stage in self._stages))
        await self.importer.close()


@pytest.fixture
async def forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Forked]:
    caplog.set_level(logging.DEBUG)
    command = [sys.executable, "-c", STAND_IN]
    monkeypatch.setattr(importing, "worker_command", lambda *_: command)
    made = Forked(tmp_path, caplog)
    yield made
    await made.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_stage_has_a_session_of_its_own_its_log_and_no_input(forked: Forked) -> None:
    talker, thinker = [await forked.start(name) for name in ("talker", "thinker")]
    for stage in (talker, thinker):
        pid, parent, is_leader, stdin = await forked.told(stage)
        assert (int(pid), is_leader, stdin) == (stage.pid, "True", os.devnull)
        assert int(parent) not in (os.getpid(), stage.pid)
    assert (await forked.told(talker))[1] == (await forked.told(thinker))[1]


async def test_it_is_known_how_a_stage_ended(forked: Forked) -> None:
    stage = await forked.start("fails")
    assert await stage.wait() == "exit code 3"
    stage = await forked.start("talker")
    await forked.told(stage)
    await stage.stop(0)
    assert await stage.wait() == "signal SIGTERM"


async def test_a_stage_that_is_killed_is_forked_again_by_the_same_process(forked: Forked) -> None:
    thinker, talker = [await forked.start(name) for name in ("thinker", "talker")]
    pid, parent, *_ = await forked.told(talker)
    await forked.told(thinker)
    os.kill(int(pid), signal.SIGKILL)
    assert await talker.wait() == "signal SIGKILL"
    following = await forked.start("next")
    assert (await forked.told(following))[1] == parent
    assert thinker.is_alive


async def test_stages_end_with_their_importer_and_the_next_has_another(
    forked: Forked, caplog: pytest.LogCaptureFixture
) -> None:
    stages = [await forked.start(name) for name in ("thinker", "talker")]
    told = [await forked.told(stage) for stage in stages]
    os.kill(int(told[0][1]), signal.SIGKILL)
    assert [await stage.wait() for stage in stages] == ["signal SIGKILL"] * 2
    await until(lambda: all(is_gone(int(pid)) for pid, *_ in told))
    assert "the importer of stage talker ended: signal SIGKILL" in caplog.messages
    following = await forked.start("next")
    assert (await forked.told(following))[1] != told[0][1]


async def test_a_stage_is_stopped_or_killed_while_its_importer_imports(
    forked: Forked, caplog: pytest.LogCaptureFixture
) -> None:
    forked.environment["HELD"] = "1"
    stage = await forked.start("talker")
    await until(lambda: forked.lines("importer") == ["held"])
    assert stage.pid is None
    await stage.stop(0)
    stage = await forked.start("talker")
    await until(lambda: forked.lines("importer") == ["held"] * 2)
    stage.kill()
    assert await stage.wait() == "signal SIGKILL"
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


async def test_an_importer_that_does_not_report_an_end_is_ended(
    forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "REPORT_S", 0.0)
    stage = await forked.start("talker")
    pid, parent, *_ = await forked.told(stage)
    os.kill(int(parent), signal.SIGSTOP)
    stage.kill()
    assert await stage.wait() == "signal SIGKILL"
    assert is_gone(int(parent))
    await until(lambda: is_gone(int(pid)))


async def test_nothing_is_left_of_an_importer_that_is_closed(forked: Forked) -> None:
    stage = await forked.start("talker")
    _, parent, *_ = await forked.told(stage)
    await stage.stop(0)
    await forked.importer.close()
    assert is_gone(int(parent))


def changed(**changes: dict[str, Any]) -> StageGraph:
    """The tiny graph with other keys of its stages."""
    graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "tiny").model_dump(mode="json")
    for name, keys in changes.items():
        graph["stages"][name] |= keys
    return StageGraph.model_validate(graph)


def share(graph: StageGraph, one: str, other: str) -> bool:
    importers = Importers(graph, Path(), {})._importers
    return importers[one] is importers[other]


def test_stages_share_an_importer_if_their_engine_and_environment_are_the_same() -> None:
    assert share(changed(), "thinker", "talker")
    assert not share(changed(), "talker", "code2wav")
    assert not share(changed(talker={"environment": {"A": "1"}}), "thinker", "talker")


def test_a_stage_with_a_gpu_is_an_interpreter_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    importers = Importers(changed(thinker={"gpus": [1]}), tmp_path, {})
    assert importers._importers == {}  # the others take the first GPU that is visible
    assert importers.launch("thinker", tmp_path)._fork is None
