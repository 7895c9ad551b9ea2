"""Fixtures of the tests of answers ahead."""

from collections.abc import Iterator

import pytest
from support.gateway import RunningGateway
from support.realtime import Talk, talking

from omnistage.server.realtime.ahead import answer_ahead


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer waits for the end of its turn however long this machine stands still."""
    monkeypatch.setattr(answer_ahead, "MAX_WAIT_S", 600.0)


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway) as talk:
        yield talk
        talk.order.end()
