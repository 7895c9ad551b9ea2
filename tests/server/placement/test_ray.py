"""Stages on two real Ray nodes of this machine, without HTTP: places, deaths, nothing left."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.util import placement_group_table
from support.faults.ray_nodes import HEAD, OTHER, RayNodes, folders_left, running_nodes, workers
from support.gateway.chats import request_of
from support.gateway.serving import outputs_of
from support.repository.shout import install_shout, shout_model
from support.waiting import until

from omnistage.connectors.sweep import make_run_directory
from omnistage.server.placement.placing import OnNodes, PlacementError
from omnistage.server.placement.ray import RayCluster
from omnistage.server.runtime.request import TextOutput
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph

pytestmark = pytest.mark.engine

SLOW_S = 150.0


@pytest.fixture(scope="module", autouse=True)
def shout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The stages, for this process and all that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        installed = install_shout(tmp_path_factory.mktemp("site"), patch)
        yield
        installed.close()


@pytest.fixture(scope="module")
def nodes(shout: None) -> Iterator[RayNodes]:
    with running_nodes() as nodes:
        yield nodes


def graph_of(model: Path, address: str, node: str = OTHER) -> StageGraph:
    """The reader on the head, with a GPU of it; the writer on another node."""
    return StageGraph.model_validate(
        {
            "model": str(model),
            "placement": {"by": "ray", "address": address},
            "deadlines": {"hang_s": 60},  # the machine has other work
            "stages": {
                "reader": {"kind": "shout.reader", "gpus": 1, "resources": {HEAD: 0.1}},
                "writer": {"kind": "shout.writer", "resources": {node: 0.1}},
            },
            "edges": [{"from": "reader", "to": "writer"}],
            "outputs": {"text": "writer"},
        }
    )


class Run:
    """A runtime on the nodes."""

    def __init__(self, graph: StageGraph) -> None:
        self._directory = make_run_directory()
        self.placing = OnNodes(graph, self._directory.path, {})
        launch, release = self.placing.launch, self.placing.release
        self.runtime = Runtime(graph, self._directory.path, launch, release=release)
        self.placing.listen(self.runtime.fleet.lose, self.runtime.fleet.is_ready)

    @property
    def states(self) -> dict[str, str]:
        return {name: str(stage["state"]) for name, stage in self.runtime.fleet.health.items()}

    async def said(self, text: str) -> str:
        """What the graph answers."""
        request = request_of(text, "text")
        found = ""
        async for output in outputs_of(self.runtime, request):
            if isinstance(output, TextOutput):
                for choice in output.chunk["choices"]:
                    found += choice["delta"].get("content", "")
        return found

    async def left(self) -> None:
        """Return when nothing is left of it."""
        self._directory.remove()
        await until(lambda: not workers() and not folders_left(), SLOW_S)


async def test_a_graph_across_two_nodes_outlives_one_and_leaves_nothing(
    nodes: RayNodes, tmp_path: Path
) -> None:
    run = Run(graph_of(shout_model(tmp_path / "model"), nodes.address))
    fleet = run.runtime.fleet
    async with run.placing, run.runtime:
        await asyncio.wait_for(fleet.loaded(), SLOW_S)
        found = workers()
        assert found["reader"][1] != found["writer"][1]
        assert environment_of(found["reader"][0])["CUDA_VISIBLE_DEVICES"] in ("0", "1")
        assert environment_of(found["writer"][0])["CUDA_VISIBLE_DEVICES"] == ""
        assert await run.said("hello there") == "HELLO THERE!"
        os.kill(found["writer"][0], signal.SIGKILL)
        await until(lambda: fleet.health["writer"]["generation"] == 2, SLOW_S)
        assert fleet.health["writer"]["ended_by"] == "signal SIGKILL"
        await until(lambda: run.states["writer"] == "ready", SLOW_S)
        assert await run.said("again") == "AGAIN!"
        nodes.kill()
        await until(lambda: fleet.health["writer"]["generation"] >= 3, SLOW_S)
        waits = "waiting for room on a node"
        await until(lambda: fleet.health["writer"]["phase"] == waits, SLOW_S)
        assert run.states["reader"] == "ready"
        await until(lambda: not found["writer"][1].exists(), SLOW_S)
        nodes.add()
        await until(lambda: run.states["writer"] == "ready", SLOW_S)
        assert await run.said("here i am") == "HERE I AM!"
        assert fleet.health["reader"]["generation"] == 1
    await run.left()
    assert set(nodes.groups()) == {"REMOVED"}


async def test_a_model_that_a_node_does_not_have_is_named_with_the_node(
    nodes: RayNodes, tmp_path: Path
) -> None:
    run = Run(graph_of(tmp_path / "nowhere", nodes.address))
    fleet = run.runtime.fleet
    async with run.placing, run.runtime:
        await until(lambda: run.states["writer"] == "dead", SLOW_S)
        ended_by = fleet.health["writer"]["ended_by"]
        assert f"has no folder {tmp_path / 'nowhere'}, the model of stage writer" in ended_by
    await run.left()


async def test_room_that_a_replica_waited_for_is_not_kept_once_the_replica_is_gone(
    nodes: RayNodes, tmp_path: Path
) -> None:
    graph = graph_of(tmp_path, nodes.address, node="nowhere")
    writer = graph.stages["writer"].model_copy(update={"max_replicas": 2})
    graph = graph.model_copy(update={"stages": {**graph.stages, "writer": writer}})
    before = nodes.groups().count("REMOVED")
    cluster = RayCluster(graph, tmp_path, {})
    cluster.connect()
    try:
        assert await cluster.node_of("writer@1") is None
        assert states().count("PENDING") == 2
        await cluster.release("writer@1")
        await until(lambda: states().count("PENDING") == 1, SLOW_S)
    finally:
        cluster.close()
    assert nodes.groups().count("REMOVED") == before + 2


def states() -> list[str]:
    """Of the placement groups, for a process that has joined."""
    return [group["state"] for group in placement_group_table().values()]


async def test_no_cluster_is_told_with_its_cure(tmp_path: Path) -> None:
    run = Run(graph_of(tmp_path, "127.0.0.1:1"))
    with pytest.raises(PlacementError, match="ray start --head"):
        async with run.placing:
            raise AssertionError("there is a cluster")
    await run.left()


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
