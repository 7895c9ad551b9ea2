"""A program below us: its lines, how it ended, and that it never outlives us."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import until, wait_until

from omnistage.server.cells import bound
from omnistage.server.cells.child import Child, named


def child(program: str, *arguments: str) -> tuple[Child, list[str]]:
    lines: list[str] = []
    command = [sys.executable, "-c", program, *arguments]
    return Child("cell0", command, {"OF_THE_CELL": "7"}, lines.append), lines


async def test_its_lines_are_told_with_its_name_and_it_has_its_environment() -> None:
    one, lines = child("import os; print('first'); print(os.environ['OF_THE_CELL']); exit(4)")
    await one.start()
    assert await one.wait() == "exit code 4"
    assert lines == ["cell0 | first\n", "cell0 | 7\n"]
    assert one.last_line == "7"


def test_a_line_in_json_stays_one() -> None:
    assert json.loads(named("cell1", '{"level": "info"}')) == {"cell": "cell1", "level": "info"}
    assert named("cell1", "{no json") == "cell1 | {no json"


async def test_one_that_does_not_end_in_time_is_killed() -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    one, lines = child(f"{deaf}; time.sleep(60)")
    await one.start()
    await until(lambda: lines, 20)
    one.tell(signal.SIGTERM)
    assert not await one.end_within(0.1)
    assert await one.wait() == "signal SIGKILL"
    one.tell(signal.SIGTERM)  # nobody is there


async def test_a_line_that_is_too_long_does_not_end_the_reading() -> None:
    one, lines = child("print('x' * (3 << 20)); print('after')")
    await one.start()
    assert await one.wait() == "exit code 0"
    assert lines[-1] == "cell0 | after\n"


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(bound.__file__))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: psutil.Process(pid).name() == "sleep")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_a_child_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    made = tmp_path / "made"
    done = subprocess.run([sys.executable, str(bound.__file__), "1", "touch", str(made)])
    assert done.returncode == 1
    assert not made.exists()


@pytest.mark.parametrize("lines", [["a", "b", ""], ["b"]])
async def test_the_last_line_is_one_that_says_something(lines: list[str]) -> None:
    one, _ = child("import sys; print('\\n'.join(sys.argv[1:]))", *lines)
    await one.start()
    await one.wait()
    assert one.last_line == "b"
