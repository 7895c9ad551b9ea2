"""The end of a runtime: requests and commands fail first, then the stages end."""

import asyncio
from pathlib import Path

import pytest
from support.fakes.stages import FakeGraph
from support.gateway.chats import request_of
from support.gateway.serving import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages import to_stage

GRAPH = StageGraph.model_validate(OMNI)


def runtime_of(directory: Path) -> tuple[Runtime, FakeGraph]:
    shared = SharedConnector(directory)
    stages = FakeGraph(shared.connector)
    return Runtime(GRAPH, directory, stages.launch, shared), stages


async def all_of(runtime: Runtime, script: str, *outputs: str) -> list[Output]:
    request = request_of(script, *(outputs or ("text", "audio")))
    return [output async for output in outputs_of(runtime, request)]


async def test_requests_and_commands_are_told_that_the_server_ends(tmp_path: Path) -> None:
    runtime, stages = runtime_of(tmp_path)
    stages.obey = lambda *_: None  # no answer comes
    async with runtime:
        await runtime.fleet.loaded()
        thinker = runtime.fleet.stages["thinker"]
        asking = asyncio.create_task(all_of(runtime, "hang"))
        ordering = asyncio.create_task(runtime.fleet.commander.send(thinker, "sleep", {}))
        await until(lambda: {to_stage.Request, to_stage.Command} <= seen_by(stages, "thinker"))
        runtime.end_requests()
        for waiting in (asking, ordering):
            with pytest.raises(ApiError, match="shutting down") as caught:
                await waiting
            assert caught.value.code == "stopping"


async def test_a_request_that_runs_at_the_end_is_told_so_and_not_that_its_stage_died(
    tmp_path: Path,
) -> None:
    runtime, stages = runtime_of(tmp_path)
    async with runtime:
        await runtime.fleet.loaded()
        asking = asyncio.create_task(all_of(runtime, "hang"))
        await until(lambda: to_stage.Request in seen_by(stages, "thinker"))
    with pytest.raises(ApiError) as caught:
        await asking
    assert caught.value.code == "stopping"
    assert sorted(stages.launched) == sorted(GRAPH.stages)  # none was started again
    assert all(seen_by(stages, name) >= {to_stage.Stop} for name in GRAPH.stages)


async def test_a_runtime_that_admits_nothing_more_lets_what_has_a_place_end(tmp_path: Path) -> None:
    runtime, stages = runtime_of(tmp_path)
    async with runtime:
        await runtime.fleet.loaded()
        asking = asyncio.create_task(all_of(runtime, "wait"))
        await until(lambda: stages.num_waiting)
        runtime.flights.stop_admitting()
        with pytest.raises(ApiError) as refused:
            runtime.flights.admit({"text"})
        assert (refused.value.status, refused.value.code) == (503, "stopping")
        assert not runtime.flights.is_empty
        stages.go_on()
        assert await asking
        assert runtime.flights.is_empty


async def test_a_start_that_fails_ends_the_stages_that_have_begun(tmp_path: Path) -> None:
    runtime, stages = runtime_of(tmp_path)
    stages.unlaunchable = {"talker"}
    with pytest.raises(BlockingIOError):
        async with runtime:
            pass
    assert stages.launched == ["thinker"]
    async with asyncio.timeout(600):
        assert await stages.stages["thinker"].wait() == "stop"


def seen_by(stages: FakeGraph, name: str) -> set[type]:
    """The types of the messages that a stage was sent."""
    return {type(chunk.message) for chunk in stages.stages[name].seen}


def outcome_of(waiting: "asyncio.Task[list[Output]]") -> str:
    """How a request ended, or that it has not."""
    if not waiting.done():
        return "runs"
    error = waiting.exception()
    return error.code or "" if isinstance(error, ApiError) else "finished"


@pytest.mark.parametrize(
    ("edge", "spoken", "written"),
    [
        (("thinker", "talker"), "edge_lost", "runs"),
        (("gateway", "code2wav"), "edge_lost", "runs"),
        (("thinker", "gateway"), "edge_lost", "edge_lost"),
    ],
)
async def test_a_lost_edge_fails_the_requests_that_cross_it_and_no_stage(
    edge: tuple[str, str], spoken: str, written: str, tmp_path: Path
) -> None:
    runtime, stages = runtime_of(tmp_path)
    async with runtime:
        await runtime.fleet.loaded()
        speaking = asyncio.create_task(all_of(runtime, "hang"))
        writing = asyncio.create_task(all_of(runtime, "hang", "text"))
        thinker = stages.stages["thinker"]
        await until(
            lambda: [type(one.message) for one in thinker.seen].count(to_stage.Request) == 2
        )
        runtime.fleet.lose([edge])
        await until(lambda: (outcome_of(speaking), outcome_of(writing)) == (spoken, written))
        assert f"from {edge[0]} to {edge[1]} was lost" in str(speaking.exception())
        assert not runtime.fleet.unready
        assert len(stages.launched) == len(GRAPH.stages)
    await asyncio.gather(speaking, writing, return_exceptions=True)


async def test_a_lost_edge_to_the_gateway_fails_the_commands_of_its_stage(tmp_path: Path) -> None:
    runtime, stages = runtime_of(tmp_path)
    stages.obey = lambda *_: None  # no answer comes
    async with runtime:
        await runtime.fleet.loaded()
        links = runtime.fleet.stages
        ordering = [
            asyncio.create_task(runtime.fleet.commander.send(links[name], "sleep", {}))
            for name in ("thinker", "talker")
        ]
        await until(lambda: to_stage.Command in seen_by(stages, "talker"))
        runtime.fleet.lose([("talker", "gateway"), ("gateway", "talker")])
        with pytest.raises(ApiError, match="from talker to gateway was lost"):
            await ordering[1]
        assert not ordering[0].done()
    await asyncio.gather(*ordering, return_exceptions=True)
