"""Shares of a GPU's multiprocessors are refused, wherever they come from."""

from pathlib import Path

import pytest

from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules import mps
from omnistage.stage_configs.rules.mps import ALLOW, SHARE, inherited_share_problem, share_problem

GRAPH = """\
model: some/model
stages:
  thinker:
    kind: vllm.text
    gpus: [0]
    environment: {CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: SHARE}
outputs: {text: thinker}
"""


@pytest.mark.parametrize("share", ["75", "12.5", "0", "99.9"])
def test_a_graph_with_a_share_is_refused_by_name_and_place(tmp_path: Path, share: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(GRAPH.replace("SHARE", share))
    with pytest.raises(GraphError) as refused:
        load_graph(path)
    message = str(refused.value)
    assert f"{path}:6" in message
    assert f"{SHARE} is {share}" in message
    assert "leave it out, or set it to 100" in message


@pytest.mark.parametrize("share", ["100", "100.0"])
def test_the_whole_gpu_is_no_share(tmp_path: Path, share: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(GRAPH.replace("SHARE", share))
    load_graph(path)


def test_a_share_that_is_no_number_is_refused() -> None:
    assert "must be a number" in share_problem({SHARE: "most"})


def test_a_share_of_the_server_s_own_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert inherited_share_problem() == ""
    monkeypatch.setenv(SHARE, "60")
    assert f"{SHARE} is 60" in inherited_share_problem()
    monkeypatch.setenv(ALLOW, "1")
    assert inherited_share_problem() == ""


@pytest.mark.parametrize(
    ("script", "is_refused"),
    [("echo 75.0", True), ("echo 100.0", False), ("echo 'no daemon'; exit 1", False)],
)
def test_the_daemon_s_default_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_refused: bool
) -> None:
    control = tmp_path / mps.CONTROL
    question = 'read asked; [ "$asked" = get_default_active_thread_percentage ] || exit 2'
    control.write_text(f"#!/bin/sh\n{question}\n{script}\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert bool(inherited_share_problem()) is is_refused


def test_no_shipped_graph_has_a_share() -> None:
    for path in GRAPHS.glob("*.yaml"):
        for stage in load_graph(path, "some/model").stages.values():
            assert SHARE not in stage.environment
