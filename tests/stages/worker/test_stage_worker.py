"""What a stage's process does with requests, cancels and failures, whatever its stage is."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from support.repository.metrics_docs import documented, exposed
from support.stages.worker_gateway import ALONE, Gateway, is_idle, measured
from support.waiting import until

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    Alive,
    Failed,
    Status,
    TextDelta,
)
from omnistage.stages.messages.to_stage import (
    Cancel,
    MediumPiece,
)

BEFORE_ANOTHER: dict[str, Any] = {
    "stages": {"one": {"kind": "vllm.text"}, "two": {"kind": "vllm.text"}},
    "edges": [{"from": "one", "to": "two"}],
    "outputs": {"text": "two"},
}


async def test_an_answer_leaves_nothing(gateway: Gateway) -> None:
    gateway.send("a", "words")
    await until(lambda: bool(gateway.of("a")))
    assert gateway.of("a")[0].message == TextDelta({"said": "words"})
    await until(lambda: is_idle(gateway, 1))


async def test_what_an_engine_gives_back_after_an_answer_is_told_soon(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.stages.worker.reports.STATUS_INTERVAL_S", 60.0)
    gateway.send("a", "engine")
    await until(lambda: bool(gateway.of("a")) and is_idle(gateway, 1))
    told = [chunk.message for chunk in gateway.got if isinstance(chunk.message, Status)]
    assert any(status.held["streams"] and not status.running for status in told)


async def test_stamps_leave_beside_the_next_output_and_before_the_last(gateway: Gateway) -> None:
    gateway.send("a", "words")
    gateway.send("b", "two words")
    gateway.send("c", "refuse")
    await until(lambda: is_idle(gateway, 3))
    assert gateway.stamps("a") == [(0, ["received"])]
    assert gateway.stamps("b") == [(1, ["received", "spoke"])]
    assert gateway.stamps("c") == [(0, ["received"])]


@pytest.mark.parametrize("stage_class", ["StageWithoutOutputs"])
@pytest.mark.parametrize("graph", [BEFORE_ANOTHER, ALONE], ids=["of none", "of others"])
async def test_a_stage_without_an_output_sends_its_stamps_itself(gateway: Gateway) -> None:
    gateway.send("a", "words")
    await until(lambda: is_idle(gateway, 1))
    assert gateway.stamps("a") == [(0, ["received", "heard"]), (1, ["finished"])]


async def test_a_cancel_ends_a_request(gateway: Gateway) -> None:
    gateway.send("a", "hang")
    await until(lambda: gateway.status.running == 1)
    gateway.send("a", Cancel())
    await until(lambda: is_idle(gateway, 1))


async def test_a_cancel_on_the_heels_of_its_request_leaves_nothing(gateway: Gateway) -> None:
    """The task is cancelled before it has run at all."""
    gateway.send("a", "hang")
    gateway.send("a", Cancel())
    await until(lambda: is_idle(gateway, 1))


def send_piece(gateway: Gateway, request_id: str) -> None:
    data = {"data": Tensor.from_numpy(np.array([1, 2], np.float32))}
    piece = MediumPiece("omnistage:a", "sound", {"rate_hz": 8000})
    gateway.requests.send(Chunk(request_id, piece, 0, data))


async def test_media_come_before_their_request_and_go_with_it(gateway: Gateway) -> None:
    send_piece(gateway, "a")
    send_piece(gateway, "b")
    await until(lambda: gateway.status.held.get("media") == 2)
    gateway.send("a", "media")
    await until(lambda: len(gateway.of("a")) == 2)
    first = gateway.of("a")[0].message
    assert isinstance(first, TextDelta)
    assert first.chunk == {"sound": [1.0, 2.0]}
    await until(lambda: gateway.status.held["media"] == 1)
    gateway.send("b", "media")
    await until(lambda: is_idle(gateway, 2))


async def test_a_cancel_before_its_request_drops_its_media(gateway: Gateway) -> None:
    send_piece(gateway, "a")
    await until(lambda: gateway.status.held.get("media") == 1)
    gateway.send("a", Cancel())
    await until(lambda: is_idle(gateway, 0))


async def test_a_cancel_before_its_request_keeps_it_from_starting(gateway: Gateway) -> None:
    gateway.send("a", Cancel())
    gateway.send("a", "hang")
    gateway.send("b", "words")
    await until(lambda: bool(gateway.of("b")))
    await until(lambda: is_idle(gateway, 1))


@pytest.mark.parametrize(("script", "status"), [("refuse", 400), ("fail", 500)])
async def test_a_failure_is_told_once_and_names_the_stage(
    script: str, status: int, gateway: Gateway
) -> None:
    gateway.send("a", script)
    await until(lambda: bool(gateway.of("a")))
    [told] = gateway.of("a")
    assert told.last
    assert isinstance(told.message, Failed)
    assert (told.message.status, told.message.stage) == (status, "one")
    await until(lambda: is_idle(gateway, 1))


@pytest.mark.parametrize(("stage_class", "graph"), [("StageThatFailsHalfWay", BEFORE_ANOTHER)])
async def test_what_a_failed_request_sent_without_its_last_is_forgotten_with_its_cancel(
    gateway: Gateway,
) -> None:
    gateway.send("a", "words")
    await until(lambda: bool(gateway.of("a")))
    assert isinstance(gateway.of("a")[0].message, Failed)
    gateway.send("a", Cancel())  # as for every flight that ended with unfinished outputs
    await until(lambda: is_idle(gateway, 1))


WINDOW = 8


async def test_a_client_that_reads_nothing_holds_its_own_request_only(gateway: Gateway) -> None:
    gateway.unread = {"a", "b"}
    for name in "ab":
        gateway.send(name, "endless")
    await until(lambda: len(gateway.of("a")) == len(gateway.of("b")) == WINDOW)
    gateway.send("c", "words")
    await until(lambda: bool(gateway.of("c")))
    await asyncio.sleep(0.05)
    assert len(gateway.of("a")) == len(gateway.of("b")) == WINDOW
    for num_read in (1, 5, WINDOW):
        before = len(gateway.of("a"))
        gateway.outputs.grant("a", num_read)
        await until(lambda at=before + num_read: len(gateway.of("a")) == at)  # type: ignore[misc]
    await asyncio.sleep(0.05)
    assert (len(gateway.of("a")), len(gateway.of("b"))) == (2 * WINDOW + 6, WINDOW)
    gateway.unread.clear()
    gateway.outputs.forget("a")
    await until(lambda: len(gateway.of("a")) > 2000)  # more than a backlog may hold
    for name in "ab":
        gateway.send(name, Cancel())
        gateway.outputs.forget(name)
    await until(lambda: is_idle(gateway, 3))


async def test_requests_are_counted_and_timed_however_they_end(gateway: Gateway) -> None:
    began = time.monotonic()
    for name, script in enumerate(("words", "refuse", "fail", "hang")):
        gateway.send(str(name), script)
    await until(lambda: gateway.status.requests_total == 4)
    gateway.send("3", Cancel())
    await until(lambda: measured(gateway).get("omnistage_stage_request_seconds_count") == 4)
    took_s = time.monotonic() - began
    found = measured(gateway)
    assert found["omnistage_stage_requests_total"] == 4
    assert 0 < found["omnistage_stage_request_seconds_sum"] < 4 * took_s
    assert found["process_resident_memory_bytes"] > 1 << 20


async def test_the_documentation_lists_what_every_stage_measures(gateway: Gateway) -> None:
    await until(lambda: bool(gateway.page))
    assert exposed(gateway.page) == documented("Processes", "Every stage")


@pytest.mark.parametrize("stage_class", ["StageWhoseMetricsHang"])
async def test_a_stage_whose_metrics_hang_answers_and_is_alive(gateway: Gateway) -> None:
    def num_signs() -> int:
        return sum(isinstance(chunk.message, Alive) for chunk in gateway.of(ABOUT_ITSELF))

    gateway.send("a", "words")
    await until(lambda: bool(gateway.of("a")))
    before = num_signs()
    await until(lambda: num_signs() > before + 3)
    assert gateway.page == ""
