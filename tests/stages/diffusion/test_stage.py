"""What the diffusion stage takes, before it loads anything."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.connectors import make_connector
from omnistage.stages.diffusion.stage import DiffusionStage, to_uint8
from omnistage.stages.stage import StagePorts


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"steps": 3}, "unknown engine argument steps; allowed: dtype"),
        ({"dtype": "int8"}, "dtype 'int8' is none of float32"),
        ({"load_format": "dummy"}, "load_format"),
    ],
)
def test_a_wrong_engine_argument_is_named(
    engine: dict[str, Any], message: str, run_directory: Path
) -> None:
    connector = make_connector("inprocess", run_directory, {})
    connector.create("dit.gateway")
    sender = connector.sender("dit.gateway")
    with pytest.raises(ValueError, match=message):
        DiffusionStage(StagePorts("dit", "a", engine, {}, sender))
    sender.close()
    connector.destroy("dit.gateway")


def test_pictures_are_rounded_and_clipped() -> None:
    values = torch.tensor([-0.5, 0.0, 0.5, 1.5]).view(1, 2, 2, 1).expand(1, 2, 2, 3).numpy()
    (picture,) = to_uint8(values)
    assert picture[..., 0].tolist() == [[0, 0], [128, 255]]
