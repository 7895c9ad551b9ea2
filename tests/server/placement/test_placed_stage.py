"""A stage on a node of a cluster: found, started, ended, lost, as its supervisor sees it."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from support.fake_nodes import FakeAgent, FakeCluster
from support.waiting import until

from omnistage.server.placement import placed_stage as placed_stage_module
from omnistage.server.placement.agent import Line
from omnistage.server.placement.nodes import Nodes
from omnistage.server.placement.placed_stage import PlacedStage
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import Loading, Phase, read_loading

MODEL = "/models/omni"
HANG_S = 1.5
GRAPH = StageGraph.model_validate(
    {
        "model": MODEL,
        "deadlines": {"hang_s": HANG_S},
        "placement": "ray",
        "stages": {
            "thinker": {"kind": "qwen3_omni.thinker", "gpus": 1},
            "talker": {"kind": "qwen3_omni.talker"},
            "code2wav": {"kind": "qwen3_omni.code2wav", "resources": {"CPU": 3, "left": 0.5}},
        },
        "edges": [{"from": "thinker", "to": "talker"}, {"from": "talker", "to": "code2wav"}],
        "outputs": {"text": "thinker", "audio": "code2wav"},
    }
)


class Placed:
    """Stages of the graph on a fake cluster."""

    def __init__(self, directory: Path, cluster: FakeCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.lost: list[set[tuple[str, str]]] = []
        self.ready: set[str] = set()  # as the gateway knows
        self.nodes = Nodes(GRAPH, directory, {"LEVEL": "INFO"}, cluster, self._note_loss)

    def _note_loss(self, edges: Collection[tuple[str, str]]) -> None:
        self.lost.append(set(edges))

    def stage(self, name: str) -> PlacedStage:
        spec, model = GRAPH.stages[name], GRAPH.model_of(name)
        return PlacedStage(name, spec, model, self.nodes, self.directory, self._is_ready)

    def _is_ready(self, name: str) -> bool:
        return name in self.ready

    def agent(self, node: str) -> FakeAgent:
        """The one that was made last on a node."""
        return self.cluster.agents[node][-1]

    async def started(self, name: str) -> PlacedStage:
        """A stage whose process runs."""
        stage = self.stage(name)
        await stage.start()
        node = self.cluster.places[name]
        await until(lambda: node in self.cluster.agents and name in self.agent(node).ends)
        return stage


@pytest.fixture
async def placed(tmp_path: Path) -> Placed:
    cluster = FakeCluster(folders=[MODEL])
    cluster.places = {"thinker": "left", "talker": "right", "code2wav": "right"}
    return Placed(tmp_path, cluster)


async def test_its_process_gets_the_gpus_of_its_bundle_and_ends_as_its_agent_says(
    placed: Placed,
) -> None:
    placed.cluster.gpus = {"thinker": ["3", "5"]}
    thinker, talker = await placed.started("thinker"), await placed.started("talker")
    assert placed.agent("left").environments == {"thinker": {"CUDA_VISIBLE_DEVICES": "3,5"}}
    assert placed.agent("right").environments == {"talker": {"CUDA_VISIBLE_DEVICES": ""}}
    placed.agent("left").ends["thinker"].set_result("exit code 1: out of memory")
    assert await thinker.wait() == "exit code 1: out of memory"
    await talker.stop(1)
    assert await talker.wait() == "exit code 0"


async def test_two_stages_of_a_node_have_one_agent(placed: Placed) -> None:
    await asyncio.gather(placed.started("talker"), placed.started("code2wav"))
    assert len(placed.cluster.agents["right"]) == 1


async def test_it_waits_for_room_and_says_so(
    placed: Placed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placed_stage_module, "ROOM_WARNING_S", 0.1)
    del placed.cluster.places["code2wav"]
    stage = placed.stage("code2wav")
    await stage.start()
    await until(lambda: "stage code2wav waits for a node with CPU 3, left 0.5" in caplog.messages)
    assert read_loading(placed.directory, "code2wav") == Loading(Phase.PLACING)
    placed.cluster.places["code2wav"] = "left"
    await until(lambda: "left" in placed.cluster.agents)
    await until(lambda: "code2wav" in placed.agent("left").ends)
    await stage.stop(0)
    assert read_loading(placed.directory, "code2wav") is None


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_one_that_waits_for_room_can_be_ended(placed: Placed, end: str) -> None:
    placed.cluster.places.clear()
    stage = placed.stage("talker")
    await stage.start()
    waiting = asyncio.create_task(stage.wait())
    if end == "kill":
        stage.kill()
    else:
        await stage.stop(5)
    assert await waiting == "it was stopped"
    assert set(placed.cluster.agents) <= {"home"}


async def test_a_node_without_the_model_is_named_with_its_path_and_nothing_starts(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster(folders=["/elsewhere"])
    cluster.places = {"talker": "right"}
    placed = Placed(tmp_path, cluster)
    stage = placed.stage("talker")
    await stage.start()
    assert await stage.wait() == f"node right has no folder {MODEL}, the model of stage talker"
    assert not placed.agent("right").ends


async def test_a_node_with_another_version_is_refused(tmp_path: Path) -> None:
    cluster = FakeCluster(version="0.0.1")
    cluster.places = {"talker": "right"}
    placed = Placed(tmp_path, cluster)
    stage = placed.stage("talker")
    await stage.start()
    assert (await stage.wait()).startswith("node right has omnistage 0.0.1, the gateway ")
    assert cluster.dropped == ["right"]


async def test_a_process_that_cannot_be_started_is_how_the_stage_ended(placed: Placed) -> None:
    talker = await placed.started("talker")
    placed.agent("right").refuses = "code2wav"
    code2wav = placed.stage("code2wav")
    await code2wav.start()
    assert await code2wav.wait() == "it cannot run on a node: no more processes"
    await code2wav.stop(0)  # as a supervisor does
    assert not placed.agent("right").ends["talker"].done()
    await talker.stop(0)


async def test_a_stop_right_before_the_process_starts_leaves_none(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_next = asyncio.get_running_loop().create_future()

    async def gpus_of(_: str) -> Sequence[str]:
        is_next.set_result(None)
        return ()

    monkeypatch.setattr(placed.cluster, "gpus_of", gpus_of)
    talker = placed.stage("talker")
    await talker.start()
    async with asyncio.timeout(600):
        await is_next
        await talker.stop(0)
    assert await talker.wait() == "it was stopped"
    assert not placed.agent("right").ends


async def test_a_nodes_death_is_the_death_of_its_stages_and_of_no_other(placed: Placed) -> None:
    thinker, talker = await placed.started("thinker"), await placed.started("talker")
    code2wav = await placed.started("code2wav")
    placed.agent("right").die()
    why = "node right is gone: it was switched off"
    assert await talker.wait() == await code2wav.wait() == why
    await talker.stop(0)  # as a supervisor does
    await until(lambda: placed.cluster.dropped == ["right"])
    waiting = asyncio.create_task(thinker.wait())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()


async def test_it_starts_again_on_another_node_after_its_channels_were_emptied(
    placed: Placed,
) -> None:
    await placed.started("thinker")
    talker = await placed.started("talker")
    left, right = placed.agent("left"), placed.agent("right")
    assert left.renewed == right.renewed == []
    right.die()
    await talker.wait()
    placed.cluster.places["talker"] = "third"
    await placed.started("talker")
    assert left.renewed == placed.agent("third").renewed == ["talker"]
    assert "talker" in placed.agent("third").ends


async def test_it_starts_again_on_its_node_with_a_new_agent_if_that_is_gone(
    placed: Placed,
) -> None:
    talker = await placed.started("talker")
    placed.agent("right").die()
    await talker.wait()
    again = placed.stage("talker")
    await again.start()
    await until(lambda: len(placed.cluster.agents["right"]) == 2)
    await until(lambda: "talker" in placed.agent("right").ends)


async def test_a_silent_node_is_lost(placed: Placed) -> None:
    thinker = await placed.started("thinker")
    placed.agent("left").is_deaf = True
    assert await thinker.wait() == "node left has been silent for 1.5 s"
    assert placed.cluster.dropped == ["left"]


async def test_a_node_that_does_not_kill_a_stage_is_lost(placed: Placed) -> None:
    thinker = await placed.started("thinker")
    agent = placed.agent("left")
    agent.ignores = "kill"
    thinker.kill()
    assert await thinker.wait() == "node left did not do within 1.5 s what it was asked"


def joined(agent: FakeAgent) -> dict[str, str]:
    """The channels of a node that go on to others, each with its peer and its direction."""
    return {
        half.address: f"{'to' if half.sends else 'from'} {half.peer}"
        for half in agent.joined.values()
    }


async def test_channels_between_nodes_are_joined_on_both_and_those_within_one_are_not(
    placed: Placed,
) -> None:
    for name in ("talker", "thinker", "code2wav"):
        await placed.started(name)
    home, left, right = (placed.agent(name) for name in ("home", "left", "right"))
    assert joined(home) == {
        "gateway.thinker": f"to {left.name}",
        "thinker.gateway": f"from {left.name}",
        "gateway.talker": f"to {right.name}",
        "talker.gateway": f"from {right.name}",
        "gateway.code2wav": f"to {right.name}",
        "code2wav.gateway": f"from {right.name}",
    }
    assert joined(left) == {
        "gateway.thinker": f"from {home.name}",
        "thinker.gateway": f"to {home.name}",
        "thinker.talker.open": f"to {right.name}",
        "thinker.talker.feed": f"to {right.name}",
        "thinker.talker.rows": f"to {right.name}",
    }
    assert {address for address in joined(right) if "thinker" in address} == {
        "thinker.talker.open",
        "thinker.talker.feed",
        "thinker.talker.rows",
    }
    assert not any(address.startswith("talker.code2wav") for address in joined(right))


async def test_channels_of_a_stage_that_has_moved_go_where_it_is(placed: Placed) -> None:
    for name in ("thinker", "talker", "code2wav"):
        await placed.started(name)
    home, left, right = (placed.agent(name) for name in ("home", "left", "right"))
    right.die()
    placed.cluster.places |= {"talker": "left", "code2wav": "home"}
    await until(lambda: right.name not in left.peers and right.name not in home.peers)
    await placed.started("talker")
    assert not any(address.startswith("thinker.talker") for address in joined(left))
    assert joined(home)["gateway.talker"] == f"to {left.name}"
    await placed.started("code2wav")
    assert joined(left)["talker.code2wav.rows"] == f"to {home.name}"
    assert joined(home)["talker.code2wav.rows"] == f"from {left.name}"
    assert "gateway.code2wav" not in joined(home)


async def test_a_lost_link_is_told_with_the_edges_that_go_over_it_and_ends_no_stage(
    placed: Placed, caplog: pytest.LogCaptureFixture
) -> None:
    stages = [await placed.started(name) for name in ("thinker", "talker", "code2wav")]
    home, left, right = (placed.agent(name) for name in ("home", "left", "right"))
    placed.ready = {"thinker", "talker", "code2wav"}
    left.lose(right)
    await until(lambda: placed.lost)
    why = "the link between left and right was lost: it broke"
    assert why in caplog.messages
    assert placed.lost == [{("thinker", "talker")}]
    home.lose(left, is_silent=True)
    await until(lambda: left.num_link_starts == 2)
    assert placed.lost[1] == {("gateway", "thinker"), ("thinker", "gateway")}
    assert (home.num_link_starts, right.num_link_starts) == (1, 1)
    await asyncio.sleep(0.05)
    for stage in stages:
        await stage.stop(0)
        assert await stage.wait() == "exit code 0"


async def test_a_stage_that_loads_when_its_link_is_lost_is_ended(placed: Placed) -> None:
    thinker, talker = await placed.started("thinker"), await placed.started("talker")
    home, left, right = (placed.agent(name) for name in ("home", "left", "right"))
    left.say(thinker=Loading(Phase.READING, 1, 2))
    await until(lambda: read_loading(placed.directory, "thinker") == Loading(Phase.READING, 1, 2))
    home.lose(left)
    assert await thinker.wait() == "the link between home and left was lost: it broke"
    assert left.ends["thinker"].result() == "signal SIGKILL"
    assert not right.ends["talker"].done()
    await talker.stop(0)


async def test_a_stage_whose_ready_was_lost_with_its_link_ends_though_it_loads_no_longer(
    placed: Placed,
) -> None:
    thinker = await placed.started("thinker")
    home, left = placed.agent("home"), placed.agent("left")
    left.say(thinker=None)
    await until(lambda: read_loading(placed.directory, "thinker") is None)
    home.lose(left)
    assert await thinker.wait() == "the link between home and left was lost: it broke"
    assert left.ends["thinker"].result() == "signal SIGKILL"


async def test_a_stage_that_is_known_to_be_ready_outlives_its_link(placed: Placed) -> None:
    placed.ready = {"thinker"}
    thinker = await placed.started("thinker")
    home, left = placed.agent("home"), placed.agent("left")
    left.say(thinker=Loading(Phase.READING, 1, 2))  # which the node has told late
    await until(lambda: read_loading(placed.directory, "thinker") == Loading(Phase.READING, 1, 2))
    home.lose(left)
    await until(lambda: placed.lost)
    await asyncio.sleep(0.05)
    assert not left.ends["thinker"].done()
    await thinker.stop(0)


async def test_lines_and_notes_of_a_node_are_those_of_its_stages(
    placed: Placed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await placed.started("talker")
    told = Loading(Phase.READING, 1, 2)
    lines = Line("talker", logging.WARNING, "100 % done"), Line("", logging.INFO, "swept")
    placed.agent("right").say(*lines, talker=told)
    await until(lambda: read_loading(placed.directory, "talker") == told)
    said = {record.message: record for record in caplog.records}
    assert said["100 % done"].levelno == logging.WARNING
    assert vars(said["100 % done"])["stage"] == "talker"
    assert "node right: swept" in said
    placed.agent("right").say(talker=None)
    await until(lambda: read_loading(placed.directory, "talker") is None)


async def test_at_the_end_every_node_is_left_and_one_that_is_gone_is_not_waited_for(
    placed: Placed,
) -> None:
    thinker, talker = await placed.started("thinker"), await placed.started("talker")
    placed.agent("right").die()
    await talker.wait()
    await thinker.stop(0)
    await placed.nodes.close()
    assert placed.agent("left").is_closed
    assert not placed.agent("right").is_closed
    assert set(placed.cluster.dropped) == {"home", "left", "right"}


async def test_the_end_does_not_wait_for_an_agent_that_starts(placed: Placed) -> None:
    thinker = await placed.started("thinker")
    placed.cluster.slow = {"right"}
    talker = placed.stage("talker")
    await talker.start()
    await until(lambda: "right" in placed.cluster.agents)
    async with asyncio.timeout(600):
        await talker.stop(0)
        await thinker.stop(0)
        await placed.nodes.close()
    assert placed.agent("home").is_closed
    assert placed.agent("left").is_closed
    assert set(placed.cluster.dropped) == {"home", "left", "right"}
