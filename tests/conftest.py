"""What all tests share: no model hub, and tiny checkpoints written once a run."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from a seed to the folder of its tiny Qwen3-Omni checkpoint."""
    from omnistage.stages.qwen3_omni.tiny import write_tiny_checkpoint

    written: dict[int, Path] = {}

    def checkpoint(seed: int) -> Path:
        if seed not in written:
            written[seed] = tmp_path_factory.mktemp("checkpoints") / f"tiny-{seed}"
            write_tiny_checkpoint(written[seed], seed=seed)
        return written[seed]

    return checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_checkpoints: Callable[[int], Path]) -> Path:
    """The folder of one tiny Qwen3-Omni checkpoint."""
    return tiny_checkpoints(0)
