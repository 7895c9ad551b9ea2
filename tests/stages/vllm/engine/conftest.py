"""Fixtures of the tests of this folder."""

from pathlib import Path

import pytest
from support.fakes.engine import FakeEngine, write_weights


@pytest.fixture
def own(tmp_path: Path) -> str:
    return write_weights(tmp_path / "own", head=(4, 2), norm=(2,))


@pytest.fixture
def engine(own: str) -> FakeEngine:
    engine = FakeEngine()
    engine.vllm_config.model_config.model = own
    return engine
