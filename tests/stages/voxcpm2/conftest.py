"""A tiny checkpoint, and what the voxcpm package made with it."""

from pathlib import Path

import pytest
import torch
from references.voxcpm2_talks import checkpoint_hash
from safetensors import safe_open

from omnistage.stages.voxcpm2.checkpoint.tiny import write

SPOKEN = Path(__file__).parents[2] / "references" / "voxcpm2.safetensors"


@pytest.fixture(scope="session")
def voxcpm2_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voxcpm2")
    write(folder, 0)
    return folder


@pytest.fixture(scope="session")
def voxcpm2_spoken(voxcpm2_checkpoint: Path) -> dict[str, torch.Tensor]:
    """What the package spoke, of this very checkpoint."""
    with safe_open(SPOKEN, "pt") as recorded:
        expected = recorded.metadata()["checkpoint"]
        tensors = {name: recorded.get_tensor(name) for name in recorded.keys()}  # noqa: SIM118
    if checkpoint_hash(voxcpm2_checkpoint) != expected:
        pytest.fail("the checkpoint is not the recorded one: record it again")
    return tensors
