"""Gateways of three models that no edge joins, and of a transcriber alone."""

from collections.abc import Iterator

import pytest
from support.cascade import CASCADE, SPEECH, TRANSCRIBER
from support.gateway import RunningGateway, running_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("cascade"), CASCADE, speech=SPEECH) as running:
        yield running


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("transcriber"), TRANSCRIBER) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway, transcriber: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()
    transcriber.wait_until_idle()
