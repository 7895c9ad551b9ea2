"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from gradio_client import Client
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.servers.page_client import opened


@pytest.fixture(scope="module")
def omni_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def omni(
    omni_gateway: RunningGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with opened(omni_gateway.url, tmp_path_factory.mktemp("page")) as client:
        yield client
