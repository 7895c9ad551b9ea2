"""Fixtures of the tests of this folder."""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.log_lines import Lines
from support.servers.collector import Collector, running_collector

from omnistage.server.http.access.keys import Keys


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """One that exports spans and can be asked for traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        options: dict[str, Any] = {
            "traces_url": collector.url,
            "admin_keys": Keys(["sk-admin"]),
            "keys": Keys(["sk-user"]),
        }
        with running_gateway(tmp_path_factory.mktemp("traced"), OMNI, **options) as running:
            yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer sk-user"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=600) as connected:
        yield connected


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> "Lines":
    caplog.set_level(logging.INFO)
    return Lines(caplog)
