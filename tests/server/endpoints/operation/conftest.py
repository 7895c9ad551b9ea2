"""Fixtures of the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.gateway.admin import KEY, Guarded
from support.gateway.metered import Server
from support.gateway.serving import OMNI, RunningGateway, running_gateway

from omnistage.server.http.access.keys import Keys


@pytest.fixture
def command_s() -> float:
    """How long a command may take."""
    return 60.0


@pytest.fixture
def admin(tmp_path: Path, command_s: float) -> Iterator[Guarded]:
    graph = {**OMNI, "deadlines": {"command_s": command_s}}
    with (
        running_gateway(tmp_path, graph, admin_keys=Keys(["sk-admin"])) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, headers=KEY) as client,
    ):
        yield Guarded(gateway, client)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_gateway(tmp_path_factory.mktemp("metrics"), OMNI) as running:
        yield Server(running)


@pytest.fixture(scope="module")
def images_server(images: RunningGateway) -> Server:
    return Server(images)
