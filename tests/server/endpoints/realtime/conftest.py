"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from support.gateway.cascade import CASCADE, SPEECH
from support.gateway.serving import RunningGateway, running_gateway


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway of three models that no edge joins."""
    with running_gateway(tmp_path_factory.mktemp("cascade"), CASCADE, speech=SPEECH) as running:
        yield running
