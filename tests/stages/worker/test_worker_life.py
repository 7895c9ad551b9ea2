"""A stage worker: commands, texts that come in pieces, starts, and the end of its engine."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stages.worker_gateway import ALONE, COMMAND_S, Gateway, is_idle
from support.waiting import pass_over, until, wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.body import GivenText
from omnistage.stages.messages.start_failure import read_start_failure
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    Alive,
    CommandResult,
    Failed,
    Ready,
    TextDelta,
)
from omnistage.stages.messages.to_stage import (
    Cancel,
    Command,
    MoreText,
    Request,
)
from omnistage.stages.worker.process.engine_processes import ENGINE_DIED

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
    program = [
        sys.executable,
        "-c",
        RUN,
        f"support.stages.worker_stage:{stage_class}",
        str(directory),
    ]
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
    program = [sys.executable, "-c", RUN, f"support.stages.worker_stage:{name}", str(directory)]
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
