"""The parts of `make chaos`: which processes it finds, and which ends of streams are right."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults.chaos import (
    NUM_SAMPLES,
    WORKER,
    Stream,
    Victim,
    check_streams,
    command_of,
    victims,
)
from support.servers.server import TinyServer
from support.waiting import wait_until

pytest.importorskip("setproctitle")

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
WAIT = "import signal; signal.pause()"
TRACKER = f"{WAIT}  # multiprocessing.resource_tracker"
TITLE = "VLLM::EngineCore"
# As an engine of vLLM's does: a title in place of the command line, and of the environment.
ENGINE = f"from setproctitle import setproctitle; setproctitle('{TITLE}'); {WAIT}"
START = "import subprocess, sys; start = lambda *one, **more: subprocess.Popen(one, **more)"
BELOW = "[start(sys.executable, '-c', code) for code in sys.argv[-1].split('@') if code]"
STAGE = f"{START}; {BELOW}; {WAIT}"


def worker(stage: str, *below: str) -> list[str]:
    """A process that looks like the worker of a stage, with others below it."""
    return [sys.executable, "-c", STAGE, "-m", WORKER, "--stage", stage, "@".join(below)]


@pytest.fixture
def server() -> Iterator[TinyServer]:
    """Two workers below a process, one of them with an engine and a resource tracker."""
    workers = [worker("talker", TRACKER, ENGINE), worker("code2wav")]
    code = f"{START}; [start(*one) for one in {workers!r}]; start('sleep', '99'); {WAIT}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, start_new_session=True) as process:
        yield TinyServer("", process, "")
        os.killpg(process.pid, KILL)


def roles(server: TinyServer) -> list[str]:
    return [str(victim) for victim in victims(server)]


def test_an_engine_is_found_that_hides_its_command_line_and_its_environment(
    server: TinyServer,
) -> None:
    expected = ["code2wav worker", "talker engine", "talker tracker", "talker worker"]
    wait_until(lambda: roles(server) == expected)

    def engine() -> int:
        return next(v.pid for v in victims(server) if v.role == "engine")

    wait_until(lambda: command_of(engine())[0].strip() == TITLE)
    assert b"=" not in Path(f"/proc/{engine()}/environ").read_bytes()
    assert roles(server) == expected


def whole(has_audio: bool) -> Stream:
    """A stream as it is at a good end."""
    stream = Stream(has_audio)
    stream.has_finished, stream.finish_reason = True, "length"
    stream.num_samples = NUM_SAMPLES if has_audio else 0
    return stream


SILENT = "showed no sign of life for 5 s"


def failed(stage: str, has_audio: bool = True, message: str = "ended") -> Stream:
    """A stream that was told of a dead stage."""
    stream = Stream(has_audio)
    stream.has_finished, stream.error = True, {"message": f"Stage {stage} {message}."}
    return stream


def cut() -> Stream:
    """A stream that ended as if all were well, with half of its sound."""
    stream = whole(has_audio=True)
    stream.num_samples //= 2
    return stream


@pytest.mark.parametrize(
    ("victim", "blow", "streams"),
    [
        ("talker engine", KILL, [failed("talker"), whole(has_audio=False)]),
        ("talker engine", STOP, [failed("talker", message=SILENT), whole(has_audio=True)]),
        ("talker worker", STOP, [whole(has_audio=True), whole(has_audio=False)]),
        ("talker tracker", KILL, [whole(has_audio=True), whole(has_audio=False)]),
    ],
)
def test_right_ends(victim: str, blow: signal.Signals, streams: list[Stream]) -> None:
    check_streams(streams, Victim(1, *victim.split()), blow)


@pytest.mark.parametrize(
    ("victim", "blow", "streams"),
    [
        ("talker engine", STOP, [whole(has_audio=True), whole(has_audio=False)]),
        ("code2wav worker", STOP, [whole(has_audio=True)]),
        ("talker engine", KILL, [failed("talker"), whole(has_audio=True)]),
        ("talker engine", KILL, [failed("talker"), failed("talker", has_audio=False)]),
        ("talker engine", STOP, [failed("talker"), cut()]),
        ("talker engine", KILL, [failed("thinker")]),
        ("talker tracker", KILL, [failed("talker")]),
    ],
    ids=[
        "all went on past a stopped engine",
        "all went on past a stopped worker that computes",
        "one went on past a killed engine",
        "one that did not need it failed",
        "one is cut without an error",
        "the error names another stage",
        "a tracker that somebody needed",
    ],
)
def test_wrong_ends(victim: str, blow: signal.Signals, streams: list[Stream]) -> None:
    with pytest.raises(AssertionError):
        check_streams(streams, Victim(1, *victim.split()), blow)
