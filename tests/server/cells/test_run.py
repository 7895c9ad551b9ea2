"""Cells without models in real processes: started together, kept alive, ended together."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fake_cell
from support.waiting import wait_until

from omnistage.server.cells.layout import Cell
from omnistage.server.cells.run import serve_command

NAMES = ("cell0", "cell1", "haproxy")
PATIENCE_S = 30.0


class Running:
    """`run_cells` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        command = [sys.executable, str(fake_cell.__file__), "run", str(folder), "2"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def mark(self, name: str, mark: str) -> Path:
        path = self.folder / f"{name}.{mark}"
        path.touch()
        return path

    def pid(self, name: str) -> int:
        wait_until(lambda: self._read(f"{name}.pid"), PATIENCE_S)
        return int(self._read(f"{name}.pid"))

    def signals(self, name: str) -> list[str]:
        return self._read(f"{name}.signals").split()

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def says(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), PATIENCE_S)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Two cells that are ready, and their balancer."""
    found = Running(tmp_path)
    for name in NAMES:
        found.mark(name, "ready")
    yield found
    if found.process.poll() is None:
        found.process.kill()
    found.process.wait(PATIENCE_S)


def all_ready(running: Running) -> list[int]:
    """The processes below, once all of them are ready."""
    for name in NAMES:
        running.says(f"{name} ready in")
    return [running.pid(name) for name in NAMES]


def test_it_lets_answers_end_and_then_ends_everything(running: Running) -> None:
    pids = all_ready(running)
    busy = running.mark("cell1", "busy")
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: is_gone(pids[0]), PATIENCE_S)
    assert running.signals("cell1") == ["SIGTERM"]
    assert running.signals("haproxy") == ["SIGUSR1"]  # it passes on what is in flight
    assert not is_gone(pids[1])
    assert not is_gone(pids[2])
    busy.unlink()
    assert running.process.wait(PATIENCE_S) == 0, running.log.read_text()
    assert all(map(is_gone, pids))
    assert running.signals("haproxy") == ["SIGUSR1", "SIGTERM"]
    assert "Traceback" not in running.log.read_text()


def test_a_second_ctrl_c_ends_everything_at_once(running: Running) -> None:
    pids = all_ready(running)
    running.mark("cell0", "busy")
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: running.signals("cell0"), PATIENCE_S)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(PATIENCE_S) == 0, running.log.read_text()
    assert all(map(is_gone, pids))
    assert "answers in flight are cut" in running.log.read_text()


def test_a_cell_or_a_balancer_that_dies_is_started_again_and_the_others_go_on(
    running: Running,
) -> None:
    pids = all_ready(running)
    for number, name in ((0, "cell0"), (2, "haproxy")):
        os.kill(pids[number], signal.SIGKILL)
        running.says(f"{name} ended: signal SIGKILL; it is started again")
        wait_until(lambda: running.pid(name) != pids[number], PATIENCE_S)  # noqa: B023
    wait_until(lambda: running.log.read_text().count("cell0 ready in") == 2, PATIENCE_S)
    assert running.pid("cell1") == pids[1]
    assert not is_gone(pids[1])
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE_S) == 0
    assert all(is_gone(running.pid(name)) for name in NAMES)


def test_when_one_cannot_load_all_end_with_its_reason(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.mark("cell0", "ready")
    running.says("cell0 ready in")
    pids = [running.pid(name) for name in NAMES]
    running.mark("cell1", "broken")
    assert running.process.wait(PATIENCE_S) == 1
    last = running.log.read_text().splitlines()[-1]
    assert last == ("cell1 ended before it was ready: exit code 3: error: there is no room for it")
    assert all(map(is_gone, pids))
    assert running.signals("cell0") == ["SIGTERM"]


def test_nobody_is_left_when_it_is_killed(running: Running) -> None:
    pids = all_ready(running)
    running.process.kill()
    running.process.wait(PATIENCE_S)
    wait_until(lambda: all(map(is_gone, pids)), PATIENCE_S)


def test_a_stop_while_cells_load_ends_them(tmp_path: Path) -> None:
    running = Running(tmp_path)
    pids = [running.pid(name) for name in NAMES]
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE_S) == 0, running.log.read_text()
    assert all(map(is_gone, pids))


def test_a_cell_is_a_server_of_this_python_with_the_options_and_its_own_port() -> None:
    command = serve_command("model", ["--max-queue=5"], Cell(1, 8002, ()))
    assert command[:4] == [sys.executable, "-m", "omnistage.server.cli", "serve"]
    assert command[4:] == ["model", "--max-queue=5", "--host", "127.0.0.1", "--port", "8002"]
