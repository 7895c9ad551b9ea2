"""Fixtures of the tests of this folder."""

from collections.abc import Iterator
from itertools import count

import pytest
from support.channels.nodes import PATIENT, Nodes

numbers = count()


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes for all tests that leave them alive."""
    with Nodes(tmp_path_factory.mktemp("nodes"), PATIENT, PATIENT) as nodes:
        yield nodes.meet()


@pytest.fixture
def address(joined: Nodes) -> Iterator[str]:
    """Names a new channel."""
    address = f"a.b.rows{next(numbers)}"
    yield address
    for node in (joined.one, joined.two):
        node.link.destroy(address)
