"""One gateway over fake stages for the tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from support.api.doors import ONE_SHOT
from support.gateway.serving import IMAGES, MODEL, OMNI, RunningGateway, running_gateway
from support.realtime.client import Talk, talking
from support.realtime.talk import MANUAL

from omnistage.server.endpoints.realtime import realtime
from omnistage.server.realtime.ahead import answer_ahead


@pytest.fixture
def by_loudness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell speech by loudness in sessions, whatever is installed."""
    monkeypatch.setattr(realtime, "silero_file", lambda: None)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI) as running:
        yield running


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


@pytest.fixture(scope="session")
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


@pytest.fixture(scope="session")
def openai(gateway: RunningGateway) -> Iterator[OpenAI]:
    with strict_client(gateway) as connected:
        yield connected


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("images"), IMAGES, arena_mb=16) as running:
        yield running


@pytest.fixture(scope="session")
def images_client(images: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=images.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


@pytest.fixture(scope="session")
def images_openai(images: RunningGateway) -> Iterator[OpenAI]:
    with strict_client(images) as connected:
        yield connected


def strict_client(gateway: RunningGateway) -> OpenAI:
    return OpenAI(
        base_url=f"{gateway.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=600,
        default_headers={"Connection": "close"},
        _strict_response_validation=True,
    )
