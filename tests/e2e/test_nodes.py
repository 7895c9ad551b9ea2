"""Stages on two Ray nodes of one machine: a graph across them, and what is left of it."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.ray_nodes import RayNodes, run_folders, running_nodes, workers
from support.server import TinyServer, running_server
from support.shout import install_shout, shout_model
from support.waiting import wait_until

pytestmark = pytest.mark.engine

SLOW_S = 60.0  # for a node to be noticed, to join, to start Python, beside other tests
GRAPH = """\
model: MODEL
placement: {by: ray, address: "ADDRESS"}
stages:
  reader: {kind: shout.reader, gpus: 1, resources: {head: 0.1}}
  writer: {kind: shout.writer, resources: {other: 0.1}, environment: {SHOUT: "yes"}}
edges: [{from: reader, to: writer}]
outputs: {text: writer}
deadlines: {first_chunk_s: 5}
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch:
        install_shout(tmp_path_factory.mktemp("site"), patch)
        with running_nodes() as nodes:
            yield nodes


@pytest.fixture(scope="module")
def graph(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    model = shout_model(folder / "model")
    path = folder / "graph.yaml"
    path.write_text(GRAPH.replace("MODEL", str(model)).replace("ADDRESS", nodes.address))
    return path


def say(server: TinyServer, text: str) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {"model": models(server)[0], "messages": messages}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def models(server: TinyServer) -> list[str]:
    found = httpx.get(f"{server.url}/v1/models").json()["data"]
    return [model["id"] for model in found]


def answer(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def own_workers(before: dict[int, tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """The stages that have come since: each with its process and its run directory."""
    return {stage: (pid, folder) for pid, (stage, folder) in workers().items() if pid not in before}


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_a_graph_across_two_nodes_outlives_the_death_of_one_and_leaves_nothing(
    nodes: RayNodes, graph: Path, tmp_path: Path
) -> None:
    before, folders = workers(), run_folders()
    log = tmp_path / "log"
    with running_server(str(graph), log) as server:
        found = own_workers(before)
        assert found.keys() == {"reader", "writer"}
        assert found["reader"][1] != found["writer"][1]  # each node has a run directory
        assert environment_of(found["reader"][0])["CUDA_VISIBLE_DEVICES"] in ("0", "1")
        assert environment_of(found["writer"][0])["CUDA_VISIBLE_DEVICES"] == ""
        assert answer(say(server, "hello there")) == "HELLO THERE!"
        check_a_stage_that_is_killed(server, found)
        check_a_node_that_is_killed(server, nodes, own_workers(before))
    assert not own_workers(before)
    wait_until(lambda: run_folders() <= folders)
    assert nodes.groups() == ["REMOVED"]


def check_a_stage_that_is_killed(server: TinyServer, found: dict[str, tuple[int, str]]) -> None:
    os.kill(found["writer"][0], signal.SIGKILL)
    wait_until(lambda: server.health()["writer"]["generation"] == 2, SLOW_S)
    assert server.health()["writer"]["ended_by"] == "signal SIGKILL"
    wait_until(lambda: server.health()["writer"]["state"] == "ready", SLOW_S)
    assert server.health()["reader"]["generation"] == 1
    assert answer(say(server, "again")) == "AGAIN!"


def check_a_node_that_is_killed(
    server: TinyServer, nodes: RayNodes, found: dict[str, tuple[int, str]]
) -> None:
    nodes.kill()
    killed_at = time.monotonic()
    wait_until(lambda: server.health()["writer"]["generation"] == 3, SLOW_S)
    assert time.monotonic() - killed_at < 10
    wait_until(lambda: server.health()["writer"]["phase"] == "waiting for room on a node", SLOW_S)
    refused = say(server, "is anybody there")
    assert refused.status_code == 503
    assert "writer" in refused.json()["error"]["message"]
    assert server.health()["reader"]["state"] == "ready"
    wait_until(lambda: not Path(found["writer"][1]).exists(), SLOW_S)
    nodes.add()
    wait_until(lambda: server.health()["writer"]["state"] == "ready", SLOW_S)
    assert answer(say(server, "here i am")) == "HERE I AM!"
