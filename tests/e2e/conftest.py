"""One server for all end-to-end tests, and the reference beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.reference import Reference
from support.server import TinyServer, running_server


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(str(tiny_checkpoint), log) as running:
        yield running


@pytest.fixture(scope="session")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(str(tiny_checkpoint))
