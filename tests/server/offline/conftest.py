"""Makes an `Omni` of each kind over fake stages; for each test, one whose stages obey commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gateway.offline import FakeStages, ObedientStages, fake_omni, served
from support.gateway.serving import IMAGES, OMNI

from omnistage import Omni


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> FakeStages:
    return FakeStages(tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="module")
def omni(stages: FakeStages) -> Iterator[Omni]:
    with fake_omni(stages, OMNI) as running:
        yield running


@pytest.fixture(scope="module")
def painter_stages(tmp_path_factory: pytest.TempPathFactory) -> FakeStages:
    return FakeStages(tmp_path_factory.mktemp("painter"))


@pytest.fixture(scope="module")
def painter(painter_stages: FakeStages) -> Iterator[Omni]:
    with fake_omni(painter_stages, IMAGES) as running:
        yield running


@pytest.fixture(scope="module")
def url(omni: Omni) -> Iterator[str]:
    with served(omni) as address:
        yield address


@pytest.fixture
def obedient(tmp_path: Path) -> ObedientStages:
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
def commanded(obedient: ObedientStages, model: Path) -> Iterator[Omni]:
    with fake_omni(obedient, {**OMNI, "model": str(model)}) as running:
        yield running
