"""Fixtures of the tests of this folder."""

from pathlib import Path

import pytest
from support.fakes.nodes import FakeCluster
from support.fakes.placed import MODEL, Placed


@pytest.fixture
async def placed(tmp_path: Path) -> Placed:
    cluster = FakeCluster(folders=[MODEL])
    cluster.places = {"thinker": "left", "talker": "right", "code2wav": "right"}
    return Placed(tmp_path, cluster)
