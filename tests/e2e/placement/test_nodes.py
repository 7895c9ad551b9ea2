"""Stages on two Ray nodes of one machine: a graph across them, and what is left of it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import yaml
from support.api.prompts import QUESTIONS
from support.faults.chaos import TEXT_STAGES, Stream, chaos_graph, streams_under_way
from support.faults.ray_nodes import HEAD, OTHER, RayNodes, folders_left, running_nodes, workers
from support.repository.shout import install_shout, shout_model
from support.servers.server import START_S, TinyServer, running_server
from support.waiting import until, wait_until

from omnistage.connectors.sweep import sweep

if TYPE_CHECKING:
    from support.oracles.reference import Reference

# tests/server/placement/test_ray.py is the short one.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif("OMNISTAGE_LONG_NODES" not in os.environ, reason="minutes: make nodes"),
]

MAX_TOKENS, MAX_FRAMES = 16, 40
SLOW_S = 150.0  # for a node to be noticed, to join, to start Python, beside other tests
GRAPH = """\
model: MODEL
placement: {by: ray, address: "ADDRESS"}
stages:
  reader: {kind: shout.reader, gpus: 1, resources: {head: 0.1}}
  writer: {kind: shout.writer, resources: {other: 0.1}, environment: {SHOUT: "yes"}}
edges: [{from: reader, to: writer}]
outputs: {text: writer}
deadlines: {hang_s: 60}
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch:
        installed = install_shout(tmp_path_factory.mktemp("site"), patch)
        with running_nodes() as nodes:
            yield nodes
        installed.close()


@pytest.fixture(autouse=True)
def two_nodes(nodes: RayNodes) -> None:
    """A test before may have ended one."""
    nodes.restore()


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
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)


def models(server: TinyServer) -> list[str]:
    found = httpx.get(f"{server.url}/v1/models").json()["data"]
    return [model["id"] for model in found]


def answer(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_a_graph_across_two_nodes_outlives_the_death_of_one_and_leaves_nothing(
    nodes: RayNodes, graph: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running_server(str(graph), log) as server:
        found = workers()
        assert found.keys() == {"reader", "writer"}
        assert found["reader"][1] != found["writer"][1]  # each node has a run directory
        assert environment_of(found["reader"][0])["CUDA_VISIBLE_DEVICES"] in ("0", "1")
        assert environment_of(found["writer"][0])["CUDA_VISIBLE_DEVICES"] == ""
        assert answer(say(server, "hello there")) == "HELLO THERE!"
        check_a_stage_that_is_killed(server, found)
        check_a_node_that_is_killed(server, nodes, workers())
    assert not workers()
    wait_until(lambda: not folders_left())
    assert set(nodes.groups()) == {"REMOVED"}


def check_a_stage_that_is_killed(server: TinyServer, found: dict[str, tuple[int, Path]]) -> None:
    os.kill(found["writer"][0], signal.SIGKILL)
    wait_until(lambda: server.health()["writer"]["generation"] == 2, SLOW_S)
    assert server.health()["writer"]["ended_by"] == "signal SIGKILL"
    wait_until(lambda: server.health()["writer"]["state"] == "ready", SLOW_S)
    assert server.health()["reader"]["generation"] == 1
    assert answer(say(server, "again")) == "AGAIN!"


def check_a_node_that_is_killed(
    server: TinyServer, nodes: RayNodes, found: dict[str, tuple[int, Path]]
) -> None:
    nodes.kill()
    wait_until(lambda: server.health()["writer"]["generation"] >= 3, SLOW_S)
    wait_until(lambda: server.health()["writer"]["phase"] == "waiting for room on a node", SLOW_S)
    refused = say(server, "is anybody there")
    assert refused.status_code == 503
    assert "writer" in refused.json()["error"]["message"]
    assert server.health()["reader"]["state"] == "ready"
    wait_until(lambda: not found["writer"][1].exists(), SLOW_S)
    nodes.add()
    wait_until(lambda: server.health()["writer"]["state"] == "ready", SLOW_S)
    assert answer(say(server, "here i am")) == "HERE I AM!"


def test_a_gateway_that_is_killed_leaves_nothing_on_another_node(
    nodes: RayNodes, graph: Path, tmp_path: Path
) -> None:
    with running_server(str(graph), tmp_path / "log") as server:
        found = workers()
        server.is_killed = True
        server.process.kill()
        wait_until(lambda: not workers(), SLOW_S)
        wait_until(lambda: not found["writer"][1].exists(), SLOW_S)
    assert folders_left() == [found["reader"][1]]  # the next server's to remove
    sweep()
    assert not folders_left()
    wait_until(lambda: set(nodes.groups()) == {"REMOVED"}, SLOW_S)


async def test_the_tiny_omni_across_nodes_equals_the_reference_and_outlives_a_node(
    nodes: RayNodes, tiny_checkpoint: Path, reference: "Reference", tmp_path: Path
) -> None:
    """Text, codes and samples; requests that are cancelled, and those of a node that is killed."""
    graph = omni_graph(tmp_path, nodes.address)
    options = ("--model", str(tiny_checkpoint))
    with running_server(str(graph), tmp_path / "log", *options) as server:
        found = workers()
        assert found["talker"][1] == found["code2wav"][1] != found["thinker"][1]
        await check_answers(server, reference)
        await check_a_cancel(server)
        await check_a_node_that_is_killed_under_load(server, nodes)
        await check_answers(server, reference)
    assert not workers()
    wait_until(lambda: not folders_left())
    assert set(nodes.groups()) == {"REMOVED"}


def omni_graph(folder: Path, address: str) -> Path:
    """The tiny graph: the thinker on one node, its voice on the other."""
    graph = yaml.safe_load(chaos_graph(folder, hang_s=60).read_text())
    graph["placement"] = {"by": "ray", "address": address}
    for stage, node in (("thinker", HEAD), ("talker", OTHER), ("code2wav", OTHER)):
        graph["stages"][stage]["resources"] = {"CPU": 0.5, node: 0.1}
    path = folder / "omni.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


async def check_answers(server: TinyServer, reference: "Reference") -> None:
    """Alone and together, whole and streamed, with images and sounds."""
    wanted = [reference.answer(asked, MAX_TOKENS, MAX_FRAMES) for asked in QUESTIONS]
    alone = [await server.ask(asked.messages) for asked in QUESTIONS]
    together = await asyncio.gather(*(server.stream(asked.messages) for asked in QUESTIONS))
    for reply, answer in zip([*alone, *together], [*wanted, *wanted], strict=True):
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert len(reply.pcm) == len(answer.pcm)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


async def check_a_cancel(server: TinyServer) -> None:
    """A client hangs up while it is spoken to: within seconds no node holds anything for it."""
    stream = Stream(has_audio=True)
    running = asyncio.create_task(stream.run(server))
    await stream.has_begun.wait()
    assert server.held()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not stream.has_finished
    await until(lambda: not server.held(), SLOW_S)


async def check_a_node_that_is_killed_under_load(server: TinyServer, nodes: RayNodes) -> None:
    """Speech fails with an error, text goes on to its end, and speech is back with a node."""
    streams, running = await streams_under_way(server)
    nodes.kill()
    await asyncio.gather(*running)
    spoken = [stream for stream in streams if stream.needs != TEXT_STAGES]
    for stream in streams:
        assert stream.is_whole != (stream in spoken), stream.error
    codes = {str(stream.error and stream.error["code"]) for stream in spoken}
    assert codes <= {"stage_unavailable", "edge_lost"}
    assert server.health()["thinker"]["generation"] == 1
    nodes.add()
    ready = f"{server.url}/ready"
    await until(lambda: httpx.get(ready, timeout=600).status_code == 200, START_S)
    await until(lambda: not server.held(), SLOW_S)
