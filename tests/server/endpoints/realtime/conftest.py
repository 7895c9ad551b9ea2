"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from support.gateway import MODEL, RunningGateway
from support.realtime import Talk, talking
from support.realtime_talk import MANUAL


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway, f"?model={MODEL}") as talk:
        talk.update(**MANUAL)
        yield talk
        talk.order.end()
