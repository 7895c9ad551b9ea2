"""One `Omni` of each kind over fake stages."""

from collections.abc import Iterator

import pytest
from support.gateway import IMAGES, OMNI
from support.offline import FakeStages, fake_omni, served

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
