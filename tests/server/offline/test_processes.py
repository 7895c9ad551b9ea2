"""A program with an `Omni` leaves nothing behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "support" / "gateway" / "offline_script.py"
END_S = 600.0
INTERRUPTED = (-signal.SIGINT, 1)  # 1: Python forgets the signal if `exec` runs at its end


class Program:
    """The script in a process of its own, once its stages have answered."""

    def __init__(self, end: str, log: Path, **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            command = [sys.executable, str(SCRIPT), end]
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )
        self.stages: list[psutil.Process] = []

    def until_running(self) -> None:
        """Its requests are in the graph, of which some has an answer that does not end."""
        self.until_it_says(r"^running$")
        self.stages = psutil.Process(self.process.pid).children()
        assert len(self.stages) == 3

    def until_it_says(self, pattern: str) -> None:
        try:
            wait_until(lambda: self._has_said(pattern), END_S)
        except BaseException:
            self.process.kill()
            raise

    def _has_said(self, pattern: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return re.search(pattern, self.log.read_text(), re.MULTILINE) is not None

    def ended(self) -> int:
        """Its exit code; there must be no process and no folder of it."""
        try:
            code = self.process.wait(END_S)
        finally:
            self.process.kill()
        for stage in self.stages:
            assert not stage.is_running(), self.log.read_text()
        for folder in (Path("/dev/shm"), Path("/tmp")):
            assert not list(folder.glob(f"omnistage-{self.process.pid}-*")), self.log.read_text()
        return code


@pytest.mark.parametrize("end", ["interrupt", "interrupt without a block"])
def test_a_program_that_is_interrupted_in_the_middle_of_a_list(end: str, tmp_path: Path) -> None:
    program = Program(end, tmp_path / "log")
    program.until_running()
    program.process.send_signal(signal.SIGINT)
    assert program.ended() in INTERRUPTED
    said = (tmp_path / "log").read_text()
    assert "\nKeyboardInterrupt\n" in said
    assert said.count("Traceback") == 1
    assert "all stages have ended" in said


@pytest.mark.parametrize(
    ("end", "code"), [("raise", 1), ("forget", 0), ("drop", 0)], ids=["raise", "forget", "drop"]
)
def test_a_program_that_ends_by_itself(end: str, code: int, tmp_path: Path) -> None:
    program = Program(end, tmp_path / "log")
    assert program.ended() == code
    said = (tmp_path / "log").read_text()
    assert said.count("Traceback") == (1 if end == "raise" else 0), said
    assert ("in the block" in said) == (end == "raise")
    assert "all stages have ended" in said


def test_a_program_that_is_interrupted_while_stages_load(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    program = Program("forget", tmp_path / "log", FAKE_SERVER_HELD=str(held))
    program.until_it_says(r"stage thinker is loading")
    program.process.send_signal(signal.SIGINT)
    assert program.ended() in INTERRUPTED
    assert (tmp_path / "log").read_text().rstrip().endswith("KeyboardInterrupt")
