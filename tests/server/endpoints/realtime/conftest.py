"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from support.cascade import CASCADE, SPEECH
from support.gateway import MODEL, RunningGateway, running_gateway
from support.realtime import Talk, talking
from support.realtime_talk import MANUAL

from omnistage.server.realtime.ahead import answer_ahead


@pytest.fixture
def talk(gateway: RunningGateway, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """A session whose turns are ended by hand, unless the server hears them `by_loudness`."""
    with talking(gateway, f"?model={MODEL}") as talk:
        if "by_loudness" not in request.fixturenames:
            talk.update(**MANUAL)
        yield talk
        talk.order.end()


@pytest.fixture
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer ahead waits for the end of its turn however long this machine stands still."""
    monkeypatch.setattr(answer_ahead, "MAX_WAIT_S", 600.0)


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway of three models that no edge joins."""
    with running_gateway(tmp_path_factory.mktemp("cascade"), CASCADE, speech=SPEECH) as running:
        yield running
