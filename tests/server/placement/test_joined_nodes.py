"""Stages on several nodes: their channels, lost links, lines, and the end."""

import asyncio
import logging

import pytest
from support.fakes.nodes import FakeAgent
from support.fakes.placed import Placed
from support.waiting import until

from omnistage.server.placement.agent import Line
from omnistage.stages.messages.loading import Loading, Phase, read_loading


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
