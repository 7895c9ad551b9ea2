"""An `Omni` whose fake stages obey commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gateway import OMNI
from support.offline import ObedientStages, fake_omni

from omnistage import Omni


@pytest.fixture
def stages(tmp_path: Path) -> ObedientStages:
    (tmp_path / "channels").mkdir()
    return ObedientStages(tmp_path / "channels")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of a checkpoint."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    return folder


@pytest.fixture
def omni(stages: ObedientStages, model: Path) -> Iterator[Omni]:
    with fake_omni(stages, {**OMNI, "model": str(model)}) as running:
        yield running
