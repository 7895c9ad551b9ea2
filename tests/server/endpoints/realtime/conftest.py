"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from support.gateway import MODEL, RunningGateway
from support.realtime import Talk, talking
from support.realtime_talk import MANUAL


@pytest.fixture
def talk(gateway: RunningGateway, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """A session whose turns are ended by hand, unless the server hears them `by_loudness`."""
    with talking(gateway, f"?model={MODEL}") as talk:
        if "by_loudness" not in request.fixturenames:
            talk.update(**MANUAL)
        yield talk
        talk.order.end()
