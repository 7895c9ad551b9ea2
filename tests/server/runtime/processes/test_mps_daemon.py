"""NVIDIA's MPS lives as long as the server that needs it, and is refused where it cannot be had."""

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes.mps import FakeMps
from support.waiting import wait_until

from omnistage.connectors.sweep import sweep
from omnistage.server.runtime.processes import mps_daemon as module
from omnistage.server.runtime.processes.mps_daemon import (
    LOGS,
    PIPES,
    Mps,
    MpsError,
    end_daemon,
    mps_daemon,
    needs_daemon,
)
from omnistage.stage_configs.graph import StageGraph

MakeMps = Callable[..., FakeMps]

SERVE_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from omnistage.connectors.sweep import make_run_directory
from omnistage.server.runtime.processes.mps_daemon import Mps, mps_daemon
from omnistage.stage_configs.graph import StageGraph

run = make_run_directory(*map(Path, sys.argv[1:3]))
graph = StageGraph.model_validate_json(sys.argv[3])
with mps_daemon(Mps.ON, graph, run.path):
    print(run.path, flush=True)
    time.sleep(3600)
"""


def graph_of(thinker: list[int], talker: list[int] | list[list[int]]) -> StageGraph:
    """Two stages on these GPUs."""
    stages: dict[str, Any] = {
        "thinker": {"kind": "qwen3_omni.thinker", "gpus": thinker},
        "talker": {"kind": "qwen3_omni.talker", "gpus": talker},
        "code2wav": {"kind": "qwen3_omni.code2wav", "gpus": [7] if talker else []},
    }
    edges = [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}]
    outputs = {"text": "thinker", "audio": "code2wav"}
    return StageGraph.model_validate({"stages": stages, "edges": edges, "outputs": outputs})


ONE_GPU, TWO_GPUS, NO_GPUS = graph_of([0], [0]), graph_of([0], [1]), graph_of([], [])


@pytest.fixture
def make_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMps]:
    """A machine with MPS; no daemon of it may be left."""
    made: list[FakeMps] = []

    def make(**options: str) -> FakeMps:
        made.append(FakeMps(tmp_path / "bin", **options))
        monkeypatch.setenv("PATH", made[0].path)
        return made[0]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.delenv(PIPES, raising=False)
    yield make
    assert [mps.daemons() for mps in made] == [[] for _ in made]


def test_a_daemon_is_started_for_stages_that_share_a_gpu_and_ends_after_them(
    make_mps: MakeMps, tmp_path: Path
) -> None:
    mps, run = make_mps(), tmp_path / "run"
    pipes, logs = f"{run}/mps/pipe", f"{run}/mps/log"
    with mps_daemon(Mps.AUTO, ONE_GPU, run):
        assert os.environ[PIPES] == pipes
        assert os.environ[LOGS] == logs
        assert len(mps.daemons()) == 1
    assert PIPES not in os.environ
    assert LOGS not in os.environ
    assert mps.daemons() == []
    assert mps.told == [
        "get_server_list pipes=/nowhere",
        f"-d pipes={pipes} logs={logs} gpus=all",  # all: it must not number them anew
        f"get_server_list pipes={pipes}",
        f"quit pipes={pipes}",
    ]


def test_the_daemon_ends_when_the_server_ends_with_an_error(
    make_mps: MakeMps, tmp_path: Path
) -> None:
    mps = make_mps()
    running: list[int] = []

    def fail_while_it_runs() -> None:
        with mps_daemon(Mps.AUTO, ONE_GPU, tmp_path / "run"):
            running.extend(mps.daemons())
            raise RuntimeError("a stage has died")

    with pytest.raises(RuntimeError, match="a stage has died"):
        fail_while_it_runs()
    assert len(running) == 1
    assert mps.daemons() == []


@pytest.mark.parametrize(
    ("mode", "graph", "is_needed"),
    [
        (Mps.AUTO, ONE_GPU, True),
        (Mps.AUTO, TWO_GPUS, False),
        (Mps.AUTO, NO_GPUS, True),  # without `gpus` a stage uses the first that there is
        (Mps.ON, TWO_GPUS, True),
        (Mps.OFF, ONE_GPU, False),
        (Mps.AUTO, graph_of([0], [[1], [2]]), False),
        (Mps.AUTO, graph_of([0], [[1], [1]]), True),  # two replicas share one
    ],
)
def test_stages_on_gpus_of_their_own_need_none_unless_it_is_asked_for(
    make_mps: MakeMps, mode: Mps, graph: StageGraph, is_needed: bool
) -> None:
    make_mps()
    assert needs_daemon(mode, graph) is is_needed


@pytest.mark.parametrize("mode", [Mps.AUTO, Mps.ON])
def test_a_daemon_that_runs_already_is_used_and_left_alone(
    make_mps: MakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mps
) -> None:
    mps, theirs = make_mps(), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "control").touch()
    monkeypatch.setenv(PIPES, str(theirs))
    with mps_daemon(mode, ONE_GPU, tmp_path / "run"):
        assert os.environ[PIPES] == str(theirs)
    assert mps.told == [f"get_server_list pipes={theirs}"]
    assert (theirs / "control").exists()


def test_without_a_gpu_it_is_refused_if_asked_for_and_otherwise_not_started(
    make_mps: MakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps = make_mps()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert needs_daemon(Mps.AUTO, NO_GPUS) is False
    with pytest.raises(MpsError, match="no stage uses a GPU"):
        needs_daemon(Mps.ON, NO_GPUS)
    assert mps.told == []


def test_a_machine_without_the_program_is_told_why_there_is_no_mps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    reason = "nvidia-cuda-mps-control is not on the PATH; it comes with NVIDIA's driver"
    with pytest.raises(MpsError, match=re.escape(reason)):
        needs_daemon(Mps.ON, ONE_GPU)
    with caplog.at_level(logging.WARNING):
        assert needs_daemon(Mps.AUTO, ONE_GPU) is False
    assert caplog.messages == [f"no MPS: {reason}; stages on one GPU take turns"]


def test_a_daemon_that_cannot_start_is_an_error_if_asked_for_and_otherwise_a_warning(
    make_mps: MakeMps, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_mps(before_start="echo this GPU has no MPS; exit 3")
    reason = "nvidia-cuda-mps-control -d ended with exit code 3: this GPU has no MPS"
    with (
        pytest.raises(MpsError, match=re.escape(reason)),
        mps_daemon(Mps.ON, ONE_GPU, tmp_path / "asked"),
    ):
        pytest.fail("it serves")
    with (
        caplog.at_level(logging.WARNING),
        mps_daemon(Mps.AUTO, ONE_GPU, tmp_path / "run"),
    ):
        assert PIPES not in os.environ
    assert caplog.messages == [f"no MPS: {reason}; stages on one GPU take turns"]


def test_a_daemon_that_does_not_answer_is_ended_and_told(
    make_mps: MakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIT_PATIENCE_S", 0.1)
    mps = make_mps(before_start='"$0" --deaf > /dev/null 2>&1 < /dev/null & exit 0')
    with (
        pytest.raises(MpsError, match="was started and does not answer"),
        mps_daemon(Mps.ON, ONE_GPU, tmp_path / "run"),
    ):
        pytest.fail("it serves")
    wait_until(lambda: not mps.daemons())


def test_a_daemon_that_does_not_quit_is_killed(
    make_mps: MakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIT_PATIENCE_S", 0.2)
    mps = make_mps(after_quit="while true; do sleep 0.02; done")
    with mps_daemon(Mps.ON, ONE_GPU, tmp_path / "run"):
        assert len(mps.daemons()) == 1
    wait_until(lambda: not mps.daemons())


def test_the_next_start_ends_the_daemon_of_a_server_that_was_killed(
    make_mps: MakeMps, tmp_path: Path
) -> None:
    mps = make_mps()
    roots = [tmp_path / "memory", tmp_path / "disk"]
    for root in roots:
        root.mkdir()
    arguments = [*map(str, roots), ONE_GPU.model_dump_json(by_alias=True)]
    command = [sys.executable, "-c", SERVE_UNTIL_KILLED, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        run = Path(server.stdout.readline().strip())
        assert sweep(roots[0], before=end_daemon) == []  # it lives
        assert len(mps.daemons()) == 1
        server.send_signal(signal.SIGKILL)
    assert len(mps.daemons()) == 1
    assert sweep(roots[0], before=end_daemon) == [run]
    assert mps.daemons() == []
    assert mps.told[-1] == f"quit pipes={run}/mps/pipe"
    assert not run.exists()


def test_a_run_without_a_daemon_asks_nobody(make_mps: MakeMps, tmp_path: Path) -> None:
    mps = make_mps()
    end_daemon(tmp_path)
    assert mps.told == []
