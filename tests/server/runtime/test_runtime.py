"""The end of a runtime: requests and commands fail first, then the stages end."""

import asyncio
from pathlib import Path

import pytest
from support.chats import request_of
from support.fake_stages import FakeGraph
from support.gateway import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.server.errors import ApiError
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages import to_stage

GRAPH = StageGraph.model_validate(OMNI)


def runtime_of(directory: Path) -> tuple[Runtime, FakeGraph]:
    shared = SharedConnector(directory)
    stages = FakeGraph(shared.connector)
    return Runtime(GRAPH, directory, stages.launch, shared), stages


async def all_of(runtime: Runtime, script: str) -> list[Output]:
    return [output async for output in outputs_of(runtime, request_of(script, "text", "audio"))]


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
        asking = asyncio.create_task(all_of(runtime, "slow"))
        await until(lambda: to_stage.Request in seen_by(stages, "thinker"))
        runtime.flights.stop_admitting()
        with pytest.raises(ApiError) as refused:
            runtime.flights.admit({"text"})
        assert (refused.value.status, refused.value.code) == (503, "stopping")
        assert not runtime.flights.is_empty
        assert await asking
        assert runtime.flights.is_empty


async def test_a_start_that_fails_ends_the_stages_that_have_begun(tmp_path: Path) -> None:
    runtime, stages = runtime_of(tmp_path)
    stages.unlaunchable = {"talker"}
    with pytest.raises(BlockingIOError):
        async with runtime:
            pass
    assert stages.launched == ["thinker"]
    async with asyncio.timeout(1):
        assert await stages.stages["thinker"].wait() == "stop"


def seen_by(stages: FakeGraph, name: str) -> set[type]:
    """The types of the messages that a stage was sent."""
    return {type(chunk.message) for chunk in stages.stages[name].seen}
