"""Fixtures of the tests of this folder."""

from collections.abc import Iterator

import pytest
from support.gateway import OMNI, RunningGateway, running_gateway
from support.speech_stream import PIECES


@pytest.fixture(scope="module")
def piecewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose model takes its text as it comes."""
    folder = tmp_path_factory.mktemp("piecewise")
    with running_gateway(folder, OMNI, speech=PIECES) as running:
        yield running
