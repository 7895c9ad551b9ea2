"""A stage on a node of a cluster: found, started, ended, lost, as its supervisor sees it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.fakes.nodes import FakeCluster
from support.fakes.placed import MODEL, Placed
from support.waiting import until

from omnistage.server.placement import placed_stage as placed_stage_module
from omnistage.stages.messages.loading import Loading, Phase, read_loading


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
