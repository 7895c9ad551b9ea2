"""What a stage's process does with requests, cancels and failures, whatever its stage is."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support.metrics_docs import documented, exposed, families_in
from support.waiting import pass_over, until, wait_until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stage_configs.rules.parallel import PARALLEL_SIZES
from omnistage.stages.messages.body import Chat, GivenText
from omnistage.stages.messages.families import page
from omnistage.stages.messages.start_failure import read_start_failure
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    TO_GATEWAY,
    Alive,
    CommandResult,
    Failed,
    Marks,
    Metrics,
    Ready,
    Status,
    TextDelta,
    ToGateway,
)
from omnistage.stages.messages.to_stage import (
    Cancel,
    Command,
    MediumPiece,
    MoreText,
    Request,
    Stop,
)
from omnistage.stages.worker.process.engine_processes import ENGINE_DIED
from omnistage.stages.worker.process.stage_process import stage_environment
from omnistage.stages.worker.stage_worker import StageWorker

COMMAND_S = 60.0
SPINS = "VLLM_USE_SPINLOOP_EXT"
TESTS = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.worker.process.stage_process import run_stage
KINDS["vllm.text"] = Kind(sys.argv[1], frozenset({"text"}))
run_stage("one", Path(sys.argv[2]))
"""


OWN_FEED = "one.one.feed"
EDGE = ("one.two.open", "one.two.feed", "one.two.rows")
ALONE: dict[str, Any] = {"stages": {"one": {"kind": "vllm.text"}}, "outputs": {"text": "one"}}
BEFORE_ANOTHER: dict[str, Any] = {
    "stages": {"one": {"kind": "vllm.text"}, "two": {"kind": "vllm.text"}},
    "edges": [{"from": "one", "to": "two"}],
    "outputs": {"text": "two"},
}


class Gateway:
    """The other ends of a worker's channels."""

    def __init__(self, directory: Path) -> None:
        connector = make_connector("shm", directory, {})
        for address in ("gateway.one", "one.gateway", *EDGE):
            connector.create(address)
        make_connector("shm", directory, {"credit": 0}).create(OWN_FEED)
        self.requests = connector.sender("gateway.one")
        self.outputs = connector.receiver("one.gateway", TO_GATEWAY)
        self.got: list[Chunk[ToGateway]] = []
        self.unread: set[str] = set()  # requests whose client reads nothing

    def send(self, request_id: str, message: Cancel | Stop | str) -> None:
        """A message, or a request with this script."""
        if isinstance(message, str):
            self.requests.send(Chunk(request_id, Request(Chat({"script": message}), ["text"])))
        else:
            self.requests.send(Chunk(request_id, message, last=True))

    def look(self) -> None:
        while (chunk := self.outputs.receive()) is not None:
            if chunk.request_id not in self.unread or isinstance(chunk.message, Marks):
                self.outputs.grant(chunk.request_id)
            self.got.append(chunk)

    def of(self, request_id: str) -> list[Chunk[ToGateway]]:
        """What has come of a request, but for its stamps."""
        self.look()
        return [
            chunk
            for chunk in self.got
            if chunk.request_id == request_id and not isinstance(chunk.message, Marks)
        ]

    def stamps(self, request_id: str) -> list[tuple[int, list[str]]]:
        """The events of each message with stamps, and its place among all of the request."""
        self.look()
        of_request = [chunk.message for chunk in self.got if chunk.request_id == request_id]
        return [
            (place, list(message.events))
            for place, message in enumerate(of_request)
            if isinstance(message, Marks)
        ]

    @property
    def status(self) -> Status:
        self.look()
        told = (chunk.message for chunk in reversed(self.got))
        return next(message for message in told if isinstance(message, Status))

    @property
    def page(self) -> str:
        """What the stage measured last; empty before the first time."""
        self.look()
        told = (chunk.message for chunk in reversed(self.got))
        return next((page(one.families) for one in told if isinstance(one, Metrics)), "")

    def close(self) -> None:
        self.requests.close()
        self.outputs.close()


@pytest.fixture
def stage_class() -> str:
    return "ScriptedStage"


@pytest.fixture
def graph() -> dict[str, Any]:
    return ALONE


@pytest.fixture
async def gateway(
    stage_class: str,
    graph: dict[str, Any],
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Gateway]:
    monkeypatch.setattr("omnistage.stages.worker.signs.INTERVAL_S", 0.01)
    monkeypatch.setattr("omnistage.stages.worker.stage_worker.visible_gpus", list)
    carried = payloads(Payload.TEXT)
    kind = Kind(
        f"support.worker_stage:{stage_class}",
        frozenset({"text"}),
        feeds_itself=stage_class == "StageThatFeedsItself",
        makes=carried,
        takes=(carried,),
    )
    monkeypatch.setitem(KINDS, "vllm.text", kind)
    directory = run_directory / "worker"
    directory.mkdir(exist_ok=True)
    parsed = StageGraph.model_validate({**graph, "deadlines": {"command_s": COMMAND_S}})
    gateway = Gateway(directory)
    worker = StageWorker(parsed, "one", directory)
    running = asyncio.create_task(worker.run())
    await until(lambda: any(isinstance(chunk.message, Ready) for chunk in gateway.of(ABOUT_ITSELF)))
    yield gateway
    gateway.send(ABOUT_ITSELF, Stop())
    await asyncio.wait_for(running, 600)
    gateway.close()
    for file in directory.iterdir():
        file.unlink()


def is_idle(gateway: Gateway, requests_total: int) -> bool:
    status = gateway.status
    return (
        status.requests_total == requests_total
        and status.running == 0
        and not any(status.held.values())
    )


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


# Metrics


def measured(gateway: Gateway) -> dict[str, float]:
    """Without buckets."""
    samples = [one for family in families_in(gateway.page) for one in family.samples]
    return {one.name: one.value for one in samples if "le" not in one.labels}


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


# Commands


async def answer(gateway: Gateway, command: str, **arguments: Any) -> CommandResult:
    gateway.requests.send(Chunk("c", Command(command, arguments), last=True))
    await until(lambda: bool(gateway.of("c")))
    [told] = gateway.of("c")
    assert told.last
    assert isinstance(told.message, CommandResult)
    await until(lambda: is_idle(gateway, 0))
    return told.message


def refusal(answer: CommandResult) -> Failed:
    assert answer.error is not None
    return answer.error


async def test_a_command_is_answered_with_its_result(gateway: Gateway) -> None:
    assert await answer(gateway, "sleep", level=2) == CommandResult({"did": "sleep", "level": 2})


async def test_a_refused_command_keeps_its_reason(gateway: Gateway) -> None:
    error = refusal(await answer(gateway, "refuse"))
    assert (error.status, error.message, error.code) == (409, "not now", "busy")


async def test_a_failed_command_names_the_stage(gateway: Gateway) -> None:
    error = refusal(await answer(gateway, "fail"))
    assert (error.status, error.stage) == (500, "one")
    assert "fail failed" in error.message


async def test_a_busy_stage_is_alive_until_its_command_is_overdue(gateway: Gateway) -> None:
    def num_signs() -> int:
        gateway.look()
        return sum(isinstance(chunk.message, Alive) for chunk in gateway.got)

    await until(lambda: num_signs() > 0)
    asking = asyncio.create_task(answer(gateway, "hang"))
    await asyncio.sleep(0)
    before = num_signs()
    await until(lambda: num_signs() > before + 5)
    assert not asking.done()
    pass_over(asyncio.get_running_loop(), COMMAND_S)
    error = refusal(await asking)
    assert (error.status, error.code) == (504, "stage_timeout")
    after = num_signs()
    await asyncio.sleep(0.1)
    assert num_signs() <= after + 1


@pytest.mark.parametrize("stage_class", ["StageWithoutCommands"])
async def test_a_stage_without_commands_says_so(gateway: Gateway) -> None:
    error = refusal(await answer(gateway, "sleep"))
    assert (error.status, error.message) == (400, "Stage one takes no commands.")


@pytest.mark.parametrize(
    ("stage_class", "reason"),
    [
        ("StageThatDoesNotFit", "stage one does not fit"),
        ("MisconfiguredStage", "unknown engine argument"),
    ],
)
def test_a_start_that_fails_leaves_its_reason(
    stage_class: str, reason: str, run_directory: Path
) -> None:
    directory = run_directory / "worker"
    directory.mkdir(exist_ok=True)
    graph = {"stages": {"one": {"kind": "vllm.text"}}, "outputs": {"text": "one"}}
    (directory / "graph.json").write_text(StageGraph.model_validate(graph).model_dump_json())
    gateway = Gateway(directory)
    program = [sys.executable, "-c", RUN, f"support.worker_stage:{stage_class}", str(directory)]
    searched = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": searched}
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"ValueError: {reason}")
    assert read_start_failure(directory, "one") == reason
    gateway.close()
    for file in directory.iterdir():
        file.unlink()


SPOKEN = Request(GivenText("ab", is_open=True), ["text"])


def read(gateway: Gateway, request_id: str) -> str:
    """What the engine of a stage that feeds itself has read."""
    told = [chunk.message for chunk in gateway.of(request_id)]
    deltas = (message.chunk["read"] for message in told if isinstance(message, TextDelta))
    return bytes(token for delta in deltas for token in delta).decode()


@pytest.mark.parametrize("stage_class", ["StageThatFeedsItself"])
async def test_a_text_is_read_by_the_engine_while_it_comes(gateway: Gateway) -> None:
    gateway.requests.send(Chunk("a", SPOKEN))
    gateway.requests.send(Chunk("a", MoreText("c")))
    await until(lambda: read(gateway, "a") == "abc")
    assert not any(chunk.last for chunk in gateway.of("a"))
    gateway.requests.send(Chunk("a", MoreText("é"), last=True))
    await until(lambda: any(chunk.last for chunk in gateway.of("a")))
    assert read(gateway, "a") == "abcé"
    await until(lambda: is_idle(gateway, 1))


@pytest.mark.parametrize("stage_class", ["StageThatFeedsItself"])
async def test_an_engine_hears_that_more_will_come(gateway: Gateway) -> None:
    gateway.requests.send(Chunk("a", SPOKEN))
    await until(lambda: len(gateway.of("a")) > 2)
    assert read(gateway, "a") == "ab"
    gateway.send("a", Cancel())
    await until(lambda: is_idle(gateway, 1))


@pytest.mark.parametrize("stage_class", ["StageThatFeedsItself"])
async def test_a_request_that_ends_before_its_text_leaves_nothing_in_the_own_feed(
    gateway: Gateway,
) -> None:
    gateway.requests.send(Chunk("a", SPOKEN))
    gateway.requests.send(Chunk("a", MoreText("enough")))
    await until(lambda: gateway.status.requests_total == 1 and gateway.status.running == 0)
    gateway.send("a", Cancel())
    await until(lambda: is_idle(gateway, 1))


@pytest.mark.parametrize("stage_class", ["ScriptedStage", "StageThatFeedsItself"])
async def test_text_of_a_request_that_is_not_there_is_dropped_and_its_credit_comes_back(
    gateway: Gateway,
) -> None:
    for _ in range(30):  # more than the channel's credit
        gateway.requests.send(Chunk("gone", MoreText("x")))
        await asyncio.sleep(0.001)
        gateway.requests.flush()
    await until(lambda: gateway.requests.credit("gone") > 0)
    gateway.send("gone", Cancel())
    await until(lambda: gateway.requests.num_requests == 0)
    assert gateway.of("gone") == []


def test_kernels_of_a_first_start_are_found_by_the_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch.compile moves Triton's cache if nothing names it."""
    spec = StageSpec.model_validate(
        {"name": "one", "kind": "vllm.text", "environment": {"A_SHARE": 1}}
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert stage_environment(spec, ()) == {
        "TRITON_CACHE_DIR": str(tmp_path / ".triton" / "cache"),
        "A_SHARE": "1",
    }
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert stage_environment(spec, ())["TRITON_CACHE_DIR"] == "/elsewhere"
    own = StageSpec.model_validate(
        {"name": "one", "kind": "vllm.text", "environment": {"TRITON_CACHE_DIR": "/mine"}}
    )
    assert stage_environment(own, ())["TRITON_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("name", PARALLEL_SIZES)
def test_only_ranks_on_a_cpu_wait_by_vllms_extension(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In loops of `sched_yield` they would hold up the whole machine."""
    monkeypatch.setattr("omnistage.stage_configs.gpus.visible_gpus", list)

    def waits(size: int | None, own: JsonMap = MappingProxyType({})) -> str | None:
        spec = {"name": "one", "kind": "vllm.text", "engine": {name: size}, "environment": own}
        return stage_environment(StageSpec.model_validate(spec), ()).get(SPINS)

    assert [waits(size) for size in (None, 1, 2)] == [None, None, "1"]
    assert waits(2, {SPINS: "0"}) == "0"
    monkeypatch.setattr("omnistage.stage_configs.gpus.visible_gpus", lambda: ["0"])
    assert waits(2) is None


@pytest.mark.parametrize("while_idle", [False, True])
def test_a_stage_whose_engine_has_died_leaves_at_once(
    while_idle: bool, run_directory: Path
) -> None:
    """It does not wait for the processes of the engine, which still run, and answers nothing."""
    directory = run_directory / f"dead-{while_idle}"
    directory.mkdir()
    gateway = Gateway(directory)
    parsed = StageGraph.model_validate({**ALONE, "model": "a"})
    (directory / "graph.json").write_text(parsed.model_dump_json(by_alias=True))
    name = "StageThatDiesIdle" if while_idle else "StageWhoseEngineDies"
    program = [sys.executable, "-c", RUN, f"support.worker_stage:{name}", str(directory)]
    searched = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": searched}
    with subprocess.Popen(program, env=environment) as process:
        wait_until(lambda: any(isinstance(c.message, Ready) for c in gateway.of(ABOUT_ITSELF)))
        if not while_idle:
            gateway.send("a", "anything")
        assert process.wait(600) == ENGINE_DIED
    assert not any(isinstance(chunk.message, Failed) for chunk in gateway.of("a"))
    gateway.close()
    for file in directory.iterdir():
        file.unlink()
