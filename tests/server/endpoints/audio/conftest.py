"""Fixtures of the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.gateway.cloning import (
    CLONING,
    URL,
    WAV,
)
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.gateway.speech_stream import PIECES


@pytest.fixture(scope="module")
def piecewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose model takes its text as it comes."""
    folder = tmp_path_factory.mktemp("piecewise")
    with running_gateway(folder, OMNI, speech=PIECES) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the server, which clients may read."""
    made = tmp_path_factory.mktemp("cloning")
    (made / "voice.wav").write_bytes(WAV)
    return made


@pytest.fixture(scope="module")
def cloning(folder: Path) -> Iterator[RunningGateway]:
    options: Any = {"speech": CLONING, "speakers": [], "media_path": folder}
    with running_gateway(folder, OMNI, arena_mb=8, **options) as running:
        yield running


@pytest.fixture
def asking(cloning: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cloning.url, timeout=600, limits=ONE_SHOT) as client:
        yield client
        for voice in client.get(URL).json()["uploaded_voices"]:
            client.delete(f"{URL}/{voice['id']}")
