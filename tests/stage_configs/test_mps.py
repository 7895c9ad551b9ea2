"""Shares of a GPU's multiprocessors are refused, wherever they come from."""

from pathlib import Path

import pytest

from omnistage.stage_configs import mps
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.mps import (
    ALLOW,
    PRIORITY,
    SHARE,
    inherited_share_problem,
    share_problem,
    stream_priority,
)
from omnistage.stage_configs.pick import GRAPHS

GRAPH = """\
model: some/model
stages:
  thinker:
    kind: vllm.text
    gpus: [0]
    environment: {KEY: VALUE}
outputs: {text: thinker}
"""


def graph_with(folder: Path, key: str, value: str) -> Path:
    """A graph whose stage has this in its environment."""
    path = folder / "graph.yaml"
    path.write_text(GRAPH.replace("KEY: VALUE", f"{key}: {value}"))
    return path


def refusal(path: Path) -> str:
    """Why it is refused; the place is the environment's."""
    with pytest.raises(GraphError) as refused:
        load_graph(path)
    message = str(refused.value)
    assert f"{path}:6" in message
    return message


@pytest.mark.parametrize("share", ["75", "12.5", "0", "99.9"])
def test_a_graph_with_a_share_is_refused_by_name_and_place(tmp_path: Path, share: str) -> None:
    message = refusal(graph_with(tmp_path, SHARE, share))
    assert f"{SHARE} is {share}" in message
    assert "leave it out, or set it to 100" in message


@pytest.mark.parametrize("share", ["100", "100.0"])
def test_the_whole_gpu_is_no_share(tmp_path: Path, share: str) -> None:
    load_graph(graph_with(tmp_path, SHARE, share))


@pytest.mark.parametrize("asked", ["6", "-1", "high", "2.5", "true", "'01'", "''"])
def test_a_priority_that_no_gpu_has_is_refused_by_name_and_place(
    tmp_path: Path, asked: str
) -> None:
    message = refusal(graph_with(tmp_path, PRIORITY, asked))
    assert f"{PRIORITY} is" in message
    assert "0 to 5 are allowed" in message


@pytest.mark.parametrize("asked", ["0", "'3'", "5"])
def test_a_priority_that_gpus_have_is_taken(tmp_path: Path, asked: str) -> None:
    environment = load_graph(graph_with(tmp_path, PRIORITY, asked)).stages["thinker"].environment
    assert stream_priority(environment) == int(asked.strip("'"))
    assert stream_priority({}) == 0


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
