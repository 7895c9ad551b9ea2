"""The limit of open files is raised, and what a loop says when they are taken stays short."""

import asyncio
import logging
import resource
import subprocess
import sys

import pytest

from omnistage.server.http.protocol.open_files import FULL, SILENT_S, AcceptFailures

SCRIPT = """
import resource, sys
from omnistage.server.http.protocol.open_files import allow_open_files
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 300), (300, 300)])
def test_a_limit_is_raised_to_what_the_process_may_have(soft: int, hard: int) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    limits = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert limits == ["300", "300"]


class Loop(asyncio.SelectorEventLoop):
    """Has a clock that a test moves."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_a_full_table_is_told_once_a_minute_with_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, failures = Loop(), AcceptFailures()
    told = []
    for loop.now in (0.0, 1.0, SILENT_S - 0.5, SILENT_S, SILENT_S + 1):
        failures(loop, {"message": FULL, "exception": OSError(24, "Too many open files")})
        told.append(len(caplog.records))
    loop.close()
    assert told == [1, 1, 1, 2, 2]
    assert f"may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files" in caplog.text
    assert "Traceback" not in caplog.text


def test_other_exceptions_are_told_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    with caplog.at_level(logging.ERROR):
        AcceptFailures()(loop, {"message": "a task has failed", "exception": ValueError("why")})
    loop.close()
    assert "a task has failed" in caplog.text
    assert "ValueError: why" in caplog.text
