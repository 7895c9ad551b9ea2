"""A stage's record: what writes it, and that nobody else can."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Connector
from omnistage.server.runtime.stage_link import OwnedStage, StageLink
from omnistage.server.runtime.stage_record import StageRecord, StageState
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages.families import MetricFamily
from omnistage.stages.messages.to_gateway import TO_GATEWAY, Metrics, Ready, Status, TextDelta
from omnistage.stages.messages.to_stage import TO_STAGE, Cancel, Command

READY = Ready(
    speakers=["ethan"],
    commands={"sleep": ""},
    work=WorkBound(max_megapixels=2.0),
    sample_rate_hz=24_000,
    num_channels=2,
)
BUSY = Status(running=2, waiting=1, held={"tasks": 2}, progress=7)


@pytest.fixture
def connector(run_directory: Path) -> Iterator[Connector]:
    """Where both channels of the stage are."""
    connector = make_connector("inprocess", run_directory, {})
    connector.create("gateway.dit")
    connector.create("dit.gateway")
    yield connector
    connector.destroy("gateway.dit")
    connector.destroy("dit.gateway")


@pytest.fixture
def stage(connector: Connector) -> Iterator[OwnedStage]:
    sender, receiver = (
        connector.sender("gateway.dit"),
        connector.receiver("dit.gateway", TO_GATEWAY),
    )
    stage = OwnedStage("dit", sender, receiver, lambda: None)
    yield stage
    stage.close()


def is_stuck(stage: OwnedStage) -> bool:
    return stage.record.stuck_at is not None


def test_a_record_cannot_be_written_nor_replaced(stage: StageLink) -> None:
    for field in fields(StageRecord):
        with pytest.raises(FrozenInstanceError):
            setattr(stage.record, field.name, None)
    with pytest.raises(AttributeError, match="no setter"):
        stage.record = StageRecord()  # type: ignore[misc]


async def test_a_record_that_was_read_stays_as_it_was(stage: OwnedStage) -> None:
    before = stage.record
    stage.apply(READY)
    assert before == StageRecord()
    assert stage.record.state is StageState.READY


async def test_ready_and_status_are_recorded(stage: OwnedStage) -> None:
    now = asyncio.get_running_loop().time()
    stage.apply(READY)
    stage.apply(BUSY)
    record = stage.record
    assert record.was_ready
    assert record.ready_at == record.alive_at
    assert now <= record.alive_at <= now + 1
    assert (record.speakers, dict(record.commands)) == (("ethan",), {"sleep": ""})
    assert record.work.max_megapixels == 2.0
    assert (record.counters["running"], record.held, record.progress) == (2, {"tasks": 2}, 7)


async def test_what_a_process_measured_is_known_until_it_ends(stage: OwnedStage) -> None:
    family = MetricFamily("a", "# TYPE a gauge\n", "a 1.0\n")
    now = time.monotonic()
    stage.apply(Metrics([family]))
    measured_at = stage.record.measured_at
    assert stage.record.families == (family,)
    assert measured_at is not None
    assert now <= measured_at <= time.monotonic()
    stage.apply(BUSY)
    assert stage.record.families == (family,)
    stage.end("signal SIGKILL", is_lost=False)
    assert not stage.record.families
    assert stage.record.measured_at is None


async def test_the_next_generation_keeps_only_what_outlives_a_process(stage: OwnedStage) -> None:
    stage.apply(READY)
    stage.apply(BUSY)
    alive_at = stage.record.alive_at
    stage.note_asleep(("weights",))
    stage.refuse_requests()
    stage.note_missed([("load_weights", {"path": "/ink"})])
    stage.note_overdue(5.0)
    stage.end("signal SIGKILL", is_lost=False)
    assert stage.record.state is StageState.DEAD
    stage.begin_next_generation()
    assert stage.record == StageRecord(
        generation=2,
        ended_by="signal SIGKILL",
        alive_at=alive_at,
        was_ready=True,
        speakers=stage.record.speakers,
        sample_rate_hz=24_000,
        num_channels=2,
        commands=stage.record.commands,
        work=stage.record.work,
        stuck_limit_s=5.0,
    )


def test_a_stage_of_which_something_sleeps_takes_no_requests(stage: OwnedStage) -> None:
    stage.refuse_requests()
    stage.note_asleep(("weights",))
    stage.accept_requests()
    assert stage.record.is_closed
    stage.note_asleep(())
    stage.accept_requests()
    assert not stage.record.is_closed


async def test_what_a_stage_has_missed_and_whether_it_is_closed_are_apart(
    stage: OwnedStage,
) -> None:
    stage.apply(READY)
    weights, adapter = ("load_weights", {"path": "/ink"}), ("add_lora", {"name": "ink"})
    stage.note_missed([weights, adapter])
    stage.refuse_requests()
    stage.accept_requests()
    assert not stage.is_open
    stage.note_done(weights)
    assert not stage.is_open
    stage.refuse_requests()
    stage.note_done(adapter)
    assert not stage.is_open
    stage.accept_requests()
    assert stage.is_open


async def test_a_stage_is_stuck_from_the_first_overdue_request_until_it_gets_on(
    stage: OwnedStage,
) -> None:
    stage.note_overdue(5.0)
    assert not is_stuck(stage)  # it does not say whether it gets on
    stage.apply(BUSY)
    stage.note_overdue(5.0)
    stuck_at = stage.record.stuck_at
    assert stuck_at is not None
    stage.note_overdue(9.0)
    stage.apply(BUSY)
    assert stage.record.stuck_at == stuck_at
    assert stage.record.stuck_limit_s == 5.0
    stage.apply(Status(progress=8))
    assert not is_stuck(stage)


def test_only_a_stage_that_lives_is_told_and_granted_anything(
    stage: OwnedStage, connector: Connector
) -> None:
    told, answers = connector.receiver("gateway.dit", TO_STAGE), connector.sender("dit.gateway")
    stage.send("a", Cancel())
    got = told.receive()
    assert got is not None
    assert got.message == Cancel()
    answers.send(Chunk("b", TextDelta({})))
    assert stage.outputs.receive() is not None
    before = answers.credit("b")
    stage.end("exit code 1", is_lost=True)
    stage.send("c", Cancel())
    stage.send("command-1", Command("sleep", {}))
    stage.finish("c", is_cancelled=True)
    stage.finish("c", is_cancelled=False)
    assert told.receive() is None
    stage.grant("b")
    assert answers.credit("b") == before
    stage.begin_next_generation()
    stage.grant("b")
    assert answers.credit("b") == before + 1
    told.close()
    answers.close()
