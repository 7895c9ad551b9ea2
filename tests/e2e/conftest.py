"""One server for all end-to-end tests, each for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import TinyServer, running_server


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(str(tiny_checkpoint), log) as running:
        yield running
