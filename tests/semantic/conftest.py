"""One server of the embedded models for all tests of meaning."""

from collections.abc import Iterator

import pytest
from support.meaning import SmallServer
from support.server import running_server


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    """The embedded models in one graph, as it is served by its name."""
    with running_server("small", tmp_path_factory.mktemp("small") / "log") as running:
        yield SmallServer(running)
