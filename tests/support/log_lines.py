"""The lines of a log, as they come."""

import logging

import pytest
from support.waiting import wait_until

FOLLOW = "omnistage.server.telemetry.follow"


class Lines:
    """What is said of requests that have ended."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def wait(self, count: int = 1) -> list[logging.LogRecord]:
        """So many records, and no more."""

        def found() -> list[logging.LogRecord]:
            return [one for one in self._caplog.records if one.name == FOLLOW]

        wait_until(lambda: len(found()) >= count)
        assert len(found()) == count
        return found()
