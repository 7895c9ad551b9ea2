"""Requests whose media are read while they are sent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes.stages import FakeGraph
from support.gateway.chats import request_of
from support.gateway.serving import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.runtime.inputs import Piece
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumPiece, Request

FIRST_S = 1.5
NUM_PIECES = 40  # more than a request has credit for


class Scripted:
    """Media that are read as a test says."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.readings: list[Reading] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.num_closed = 0

    async def pieces(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        self.readings.append(reading)
        try:
            for number in range(NUM_PIECES):
                if number == NUM_PIECES // 2:
                    await self.may_go_on.wait()
                data = Tensor.from_numpy(np.full(1000, number, np.float32))
                yield MediumPiece("omnistage:a", "sound", {"rate_hz": 8000}), data
            if self.failure is not None:
                raise self.failure
        finally:
            self.num_closed += 1


class Running:
    """A runtime over fake stages, with two thinkers."""

    def __init__(self, runtime: Runtime, stages: FakeGraph) -> None:
        self.runtime = runtime
        self.fake = stages

    def ask(self, media: Scripted, script: str = "words") -> asyncio.Task[list[Output]]:
        request = replace(request_of(script, "text"), media=media)

        async def collect() -> list[Output]:
            return [output async for output in outputs_of(self.runtime, request)]

        return asyncio.create_task(collect())

    def seen(self, stage: str) -> list[int | None]:
        """The numbers of the pieces that a stage got, and None for a request."""
        return [
            None
            if isinstance(chunk.message, Request)
            else int(chunk.tensors["data"].numpy()[0])
            if isinstance(chunk.message, MediumPiece)
            else None
            for chunk in self.fake.stages[stage].seen
        ]


@pytest.fixture
def first_s() -> float:
    """How long a first output may take."""
    return 120.0


@pytest.fixture
async def running(tmp_path: Path, first_s: float) -> AsyncIterator[Running]:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    kinds: Any = OMNI["stages"]
    two = {**kinds, "thinker": {**kinds["thinker"], "replicas": 2}}
    deadlines = {"first_chunk_s": first_s}
    graph = StageGraph.model_validate({**OMNI, "stages": two, "deadlines": deadlines})
    async with Runtime(graph, tmp_path, stages.launch, shared) as runtime:
        await runtime.fleet.loaded()
        yield Running(runtime, stages)


async def test_all_pieces_come_in_order_before_their_request(running: Running) -> None:
    media = Scripted()
    outputs = await running.ask(media)
    assert outputs[-1].last
    assert running.seen("thinker@0") == [*range(NUM_PIECES), None]
    assert media.readings == [running.fake.reading]
    assert media.num_closed == 1


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [(invalid("a", "is broken"), 400, "a is broken"), (RuntimeError("secret"), 500, "an error")],
)
async def test_media_that_cannot_be_read_fail_their_request_and_no_other(
    failure: Exception, status: int, words: str, running: Running
) -> None:
    broken, sound = running.ask(Scripted(failure)), running.ask(Scripted())
    assert (await sound)[-1].last
    with pytest.raises(ApiError, match=words) as caught:
        await broken
    assert caught.value.status == status
    assert "secret" not in caught.value.message
    stages = [running.fake.stages[f"thinker@{number}"] for number in (0, 1)]
    await until(lambda: sum(len(stage.cancelled) for stage in stages) == 1)
    assert sum(len(stage.opened) for stage in stages) == 1


@pytest.mark.parametrize("first_s", [FIRST_S])
async def test_reading_media_takes_nothing_of_the_stages_time(running: Running) -> None:
    media = Scripted()
    media.may_go_on.clear()
    asked = running.ask(media)
    await asyncio.sleep(1.5 * FIRST_S)
    assert not asked.done()
    media.may_go_on.set()
    assert (await asked)[-1].last


@pytest.mark.parametrize("first_s", [FIRST_S])
async def test_a_stage_is_late_after_its_media_too(running: Running) -> None:
    with pytest.raises(ApiError) as caught:
        await running.ask(Scripted(), "hang")
    assert caught.value.code == "stage_timeout"


async def test_who_leaves_while_media_are_read_leaves_nothing(running: Running) -> None:
    media = Scripted()
    media.may_go_on.clear()
    asked = running.ask(media)
    stage = running.fake.stages["thinker@0"]
    await until(lambda: len(stage.seen) == NUM_PIECES // 2)
    asked.cancel()
    await until(lambda: media.num_closed == 1)
    await until(lambda: len(stage.cancelled) == 1)
    assert not stage.opened
    assert running.runtime.flights.is_empty


async def test_who_never_asks_for_an_output_leaves_nothing(running: Running) -> None:
    media = Scripted()
    media.may_go_on.clear()
    request = replace(request_of("words", "text"), media=media)
    with running.runtime.flights.admit(request.message.outputs) as ticket:
        outputs = ticket.run(request)
        await until(lambda: running.fake.stages["thinker@0"].seen)
    await until(lambda: media.num_closed == 1)
    await outputs.aclose()


async def test_what_was_being_sent_to_a_replica_that_died_is_sent_to_another(
    running: Running,
) -> None:
    media = Scripted()
    media.may_go_on.clear()
    asked = running.ask(media)
    await until(lambda: len(running.fake.stages["thinker@0"].seen) == NUM_PIECES // 2)
    running.fake.stages["thinker@0"].die("signal SIGKILL")
    await until(lambda: len(running.fake.stages["thinker@1"].seen) == NUM_PIECES // 2)
    media.may_go_on.set()
    assert (await asked)[-1].last
    assert running.seen("thinker@1") == [*range(NUM_PIECES), None]
    assert media.num_closed == 2


async def test_a_stage_that_takes_nothing_stops_the_reading(running: Running) -> None:
    stage = running.fake.stages["thinker@0"]
    stage.stop_reading()
    media = Scripted()
    asked = running.ask(media)
    await asyncio.sleep(0.2)
    assert media.num_closed == 0  # it waits for room
    asked.cancel()
    await until(lambda: media.num_closed == 1)
