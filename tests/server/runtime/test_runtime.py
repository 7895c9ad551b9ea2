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


def outcome_of(waiting: "asyncio.Task[list[Output]]") -> str:
    """How a request ended, or that it has not."""
    if not waiting.done():
        return "runs"
    error = waiting.exception()
    return error.code or "" if isinstance(error, ApiError) else "finished"


@pytest.mark.parametrize(
    ("near", "far", "spoken", "written"),
    [
        (["thinker"], ["code2wav"], "stage_unavailable", "runs"),
        (None, ["code2wav"], "stage_unavailable", "runs"),
        (["thinker"], None, "stage_unavailable", "stage_unavailable"),
        (["talker"], ["talker"], "stage_unavailable", "runs"),
        (["thinker"], [], "runs", "runs"),
    ],
)
async def test_a_lost_link_fails_the_requests_that_cross_it_and_no_stage(
    near: list[str] | None, far: list[str] | None, spoken: str, written: str, tmp_path: Path
) -> None:
    runtime, stages = runtime_of(tmp_path)
    async with runtime:
        await runtime.fleet.loaded()
        speaking = asyncio.create_task(all_of(runtime, "hang"))
        request = request_of("hang", "text")
        writing = asyncio.create_task(all_outputs(runtime, request))
        await until(lambda: stages.stages["thinker"].num_requests == 2)
        runtime.lose(near, far, "the link broke")
        await asyncio.sleep(0.05)
        assert (outcome_of(speaking), outcome_of(writing)) == (spoken, written)
        if speaking.done():
            assert "the link broke" in str(speaking.exception())
        assert not runtime.fleet.unready
        assert len(stages.launched) == len(GRAPH.stages)
    await asyncio.gather(speaking, writing, return_exceptions=True)


async def test_a_lost_link_fails_the_commands_of_stages_behind_it(tmp_path: Path) -> None:
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
        runtime.lose(None, ["talker"], "the link broke")
        with pytest.raises(ApiError, match="the link broke"):
            await ordering[1]
        assert not ordering[0].done()
    await asyncio.gather(*ordering, return_exceptions=True)
