"""Room on nodes that replicas take and give back, over a Ray whose head may not answer."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
from support.waiting import until

from omnistage.server.placement import ray as ray_module
from omnistage.server.placement.ray import RayCluster
from omnistage.stage_configs.graph import StageGraph

NODE = "node"
GRAPH = StageGraph.model_validate(
    {
        "model": "m",
        "placement": "ray",
        "stages": {
            "thinker": {"kind": "qwen3_omni.thinker", "gpus": 1, "max_replicas": 2},
            "talker": {"kind": "qwen3_omni.talker"},
            "code2wav": {"kind": "qwen3_omni.code2wav"},
        },
        "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
        "outputs": {"text": "thinker", "audio": "code2wav"},
    }
)


class Group(NamedTuple):
    """A placement group; there is room for every one."""

    id: int
    bundles: Sequence[dict[str, float]]


class FakeRay:
    """What the cluster asks of Ray; `answers`: cleared while the head does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.groups: list[Group] = []
        self.removed: list[Group] = []
        self.killed: list[object] = []
        for name in ("placement_group", "placement_group_table", "remove_placement_group"):
            monkeypatch.setattr(ray_module, name, getattr(self, name))
        monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": NODE, "Alive": True}])
        monkeypatch.setattr(ray, "kill", self.kill)

    def _answer(self, call: str) -> None:
        self.asked.append(call)
        assert self.answers.wait(600)

    def placement_group(self, bundles: Sequence[dict[str, float]], strategy: str) -> Group:
        self._answer("placement_group")
        self.groups.append(Group(len(self.groups), bundles))
        return self.groups[-1]

    def placement_group_table(self, group: Group) -> dict[str, Any]:
        places = dict.fromkeys(range(len(group.bundles)), NODE)
        return {"bundles_to_node_id": places, "state": "CREATED"}

    def remove_placement_group(self, group: Group) -> None:
        self._answer("remove_placement_group")
        self.removed.append(group)

    def kill(self, actor: object) -> None:
        self._answer("kill")
        self.killed.append(actor)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay(monkeypatch)
    yield fake
    fake.answers.set()


@pytest.fixture
def cluster(fake: FakeRay, tmp_path: Path) -> Iterator[RayCluster]:
    """One that has joined, with room for what a run starts with."""
    cluster = RayCluster(GRAPH, tmp_path, {})
    cluster.home, cluster._is_ours = NODE, False
    cluster._reserve(["thinker@0", "talker"])
    yield cluster
    fake.answers.set()
    cluster.close()


async def test_a_replica_that_was_added_gives_its_room_back_and_gets_new_room_later(
    fake: FakeRay, cluster: RayCluster
) -> None:
    assert await cluster.node_of("thinker@1") == NODE
    added = fake.groups[-1]
    assert added.bundles == [{"CPU": 1, "GPU": 1}]
    assert await cluster.node_of("thinker@1") == NODE
    assert len(fake.groups) == 2
    await cluster.release("thinker@1")
    assert fake.removed == [added]
    await cluster.node_of("thinker@1")
    assert len(fake.groups) == 3


async def test_room_that_was_asked_for_together_is_kept_until_the_end(
    fake: FakeRay, cluster: RayCluster
) -> None:
    await cluster.release("thinker@0")
    assert fake.removed == []
    assert await cluster.node_of("thinker@0") == NODE
    assert len(fake.groups) == 1
    cluster.close()
    assert fake.removed == fake.groups


async def test_room_that_was_still_being_asked_for_is_given_back(
    fake: FakeRay, cluster: RayCluster
) -> None:
    fake.answers.clear()
    looking = asyncio.create_task(cluster.node_of("thinker@1"))
    await until(lambda: len(fake.asked) == 2)
    looking.cancel()
    releasing = asyncio.create_task(cluster.release("thinker@1"))
    await asyncio.gather(looking, return_exceptions=True)
    fake.answers.set()
    await releasing
    assert fake.removed == fake.groups[1:]
    assert len(fake.removed) == 1


async def test_room_that_ray_does_not_take_back_is_told_and_given_back_at_the_end(
    fake: FakeRay,
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_: Group) -> None:
        raise ConnectionError("no head")

    await cluster.node_of("thinker@1")
    with monkeypatch.context() as patch:
        patch.setattr(ray_module, "remove_placement_group", refuse)
        await cluster.release("thinker@1")
    assert "the room of stage thinker@1 is kept for now" in caplog.messages
    cluster.close()
    assert fake.removed == fake.groups


async def test_a_head_that_does_not_answer_stalls_neither_streams_nor_other_threads(
    fake: FakeRay, cluster: RayCluster
) -> None:
    actor = object()
    cluster._actors["other"] = actor
    fake.answers.clear()
    cluster.drop("other")
    calls = [cluster.node_of("thinker@1"), *(cluster.node_of("talker") for _ in range(50))]
    waiting = [asyncio.create_task(call) for call in calls]
    await until(lambda: fake.asked[-1] == "kill")
    assert await asyncio.to_thread(lambda: "done") == "done"
    assert not any(task.done() for task in waiting)
    fake.answers.set()
    assert await asyncio.gather(*waiting) == [NODE] * len(waiting)
    assert fake.killed == [actor]
