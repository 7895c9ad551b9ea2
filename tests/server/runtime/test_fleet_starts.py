"""Stages that start, end and are lost; what a fleet hands on of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.fakes.stages import FakeGraph, FakeStage
from support.gateway.chats import request_of
from support.gateway.serving import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Connector
from omnistage.connectors.options import Option
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp.connector import pair_of
from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.fleet import Fleet, StageDied
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import Sound


async def test_a_stage_that_dies_while_loading_is_told(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    stages.is_loading = {"talker"}
    graph = StageGraph.model_validate(OMNI)
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        stages.stages["talker"].die("exit code 3")
        with pytest.raises(StageDied, match=r"talker.*exit code 3"):
            await runtime.fleet.loaded()
        with pytest.raises(ApiError):
            await anext(outputs_of(runtime, request_of("words", "text", "audio")))


async def test_a_fleet_hands_on_what_is_for_requests_and_says_which_stage_died(
    tmp_path: Path,
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    fleet = Fleet(StageGraph.model_validate(OMNI), tmp_path, stages.launch, shared)
    told: list[tuple[str, str]] = []
    fleet.listen(
        lambda link, chunk: told.append((link.name, chunk.request_id)),
        lambda link: told.append((link.name, "died")),
        lambda edges: told.extend(edges),
        lambda link: told.append((link.name, "compiles")),
    )
    await fleet.start()
    await fleet.loaded()
    stages.stages["code2wav"].outputs.send(Chunk("a", Sound()))
    stages.stages["code2wav"].die("exit code 1")
    await until(lambda: len(told) == 2)
    assert told == [("code2wav", "a"), ("code2wav", "died")]
    await fleet.stop_restarts()
    await fleet.close()


async def test_what_is_kept_for_a_replica_is_given_back_when_it_is_gone_and_not_before(
    tmp_path: Path,
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    kinds: Any = OMNI["stages"]
    thinker = {**kinds["thinker"], "max_replicas": 3}
    graph = StageGraph.model_validate({**OMNI, "stages": {**kinds, "thinker": thinker}})
    released: list[str] = []

    async def release(name: str) -> None:
        assert name not in runtime.fleet.stages
        released.append(name)

    async with Runtime(graph, tmp_path, stages.launch, shared, release=release) as runtime:
        fleet = runtime.fleet
        await fleet.loaded()
        await fleet.add("thinker@1")
        stages.stages["thinker@1"].die("exit code 1")
        await until(lambda: fleet.stages["thinker@1"].record.generation == 2)
        assert released == []
        await fleet.remove("thinker@1")
        assert released == ["thinker@1"]
        stages.is_loading = {"thinker@2"}
        adding = asyncio.create_task(fleet.add("thinker@2"))
        await until(lambda: "thinker@2" in fleet.stages)
        stages.stages["thinker@2"].die("exit code 1")
        with pytest.raises(StageDied, match="thinker@2 ended while it loaded"):
            await adding
        assert released == ["thinker@1", "thinker@2"]


async def test_a_stage_that_cannot_be_ended_keeps_nothing_else_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)

    async def refuse(_: float) -> None:
        raise OSError("the node does not end it")

    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        thinker = stages.stages["thinker"]
        end = thinker.stop
        monkeypatch.setattr(thinker, "stop", refuse)
        ends = [link.requests.fileno() for link in runtime.fleet.stages.values()]
    assert "stage thinker could not be ended" in caplog.messages
    loop = asyncio.get_running_loop()
    assert not any(loop.remove_reader(end) for end in ends)
    assert await stages.stages["code2wav"].wait() == "stop"
    await end(0)


@pytest.mark.parametrize("has_started", [False, True], ids=["starting", "just started"])
async def test_a_stage_whose_start_is_cancelled_is_ended_as_the_others_are(
    has_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    begin, may_start = FakeStage.start, asyncio.Event()
    starting: asyncio.Task[Any]

    async def start(stage: FakeStage) -> None:
        await begin(stage)
        if stage.name == "talker" and has_started:
            # Both are ready to go on: the start is over, and its caller is told to end.
            asyncio.get_running_loop().call_soon(starting.cancel)
        elif stage.name == "talker":
            starting.cancel()
            asyncio.get_running_loop().call_soon(may_start.set)
            await may_start.wait()

    monkeypatch.setattr(FakeStage, "start", start)
    graph = StageGraph.model_validate(OMNI)
    runtime = Runtime(graph, tmp_path, stages.launch, shared)
    starting = asyncio.create_task(runtime.__aenter__())
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert stages.launched == ["thinker", "talker"]
    for stage in stages.stages.values():
        assert await asyncio.wait_for(stage.wait(), 600) == "stop"


async def test_a_stage_that_is_ready_before_the_next_one_starts_does_not_make_the_graph_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    runtime = Runtime(StageGraph.model_validate(OMNI), tmp_path, stages.launch, shared)
    begin = FakeStage.start

    async def start(stage: FakeStage) -> None:
        if stage.name == "talker":
            await until(lambda: runtime.fleet.stages["thinker"].is_ready)
            assert not runtime.fleet.has_settled
        await begin(stage)

    monkeypatch.setattr(FakeStage, "start", start)
    async with runtime:
        await runtime.fleet.loaded()
        assert all(link.is_ready for link in runtime.fleet.stages.values())


EDGES = [("thinker", "talker"), ("talker", "code2wav")]


@pytest.mark.parametrize("name", ["near", "far"])
async def test_an_edge_that_is_lost_fails_the_requests_that_cross_it_alone(
    name: str, tmp_path: Path
) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    edges = [{"from": one, "to": other, "connector": "tcp"} for one, other in EDGES]
    graph = StageGraph.model_validate({**OMNI, "edges": edges})

    def make(connector: str, directory: Path, options: Mapping[str, Option]) -> Connector:
        if connector == "tcp":
            return make_connector(connector, directory, options)
        return shared(connector, directory, options)

    async with Runtime(graph, tmp_path, stages.launch, make) as runtime:
        await runtime.fleet.loaded()
        spoken = outputs_of(runtime, request_of("endless", "text", "audio"))
        written = outputs_of(runtime, request_of("endless", "text"))
        async with aclosing(spoken), aclosing(written):
            await anext(spoken)
            await anext(written)
            pair = pair_of(tmp_path)
            assert pair is not None
            await until(lambda: joined(tmp_path))
            os.kill(pair.near.pid if name == "near" else pair.far.pid, signal.SIGKILL)
            with pytest.raises(ApiError, match="from talker to code2wav was lost") as caught:
                await to_the_end(spoken)
            assert (caught.value.status, caught.value.code) == (503, "edge_lost")
            for _ in range(3):
                await anext(written)
        await until(lambda: joined(tmp_path))
        async with aclosing(outputs_of(runtime, request_of("words", "text", "audio"))) as again:
            assert [output async for output in again]
    assert pair_of(tmp_path) is None


async def to_the_end(outputs: AsyncIterator[Output]) -> None:
    """Take all that comes."""
    async for _ in outputs:
        continue


def joined(directory: Path) -> bool:
    """Whether both rings of the first edge have found each other."""
    rings = [ShmConnector(directory).ring(f"thinker.talker.rows{end}") for end in ("", ".far")]
    return all(ring.is_joined for ring in rings)
