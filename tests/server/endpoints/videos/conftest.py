"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import httpx
import pytest
from support.gateway.serving import STUDIO, RunningGateway, running_gateway
from support.gateway.video_jobs import URL, client_of


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("studio"), STUDIO, arena_mb=64) as running:
        yield running


@pytest.fixture
def client(studio: RunningGateway) -> Iterator[httpx.Client]:
    with client_of(studio) as connected:
        yield connected
        for job in connected.get(URL, params={"limit": 100}).json()["data"]:
            connected.delete(f"{URL}/{job['id']}")
