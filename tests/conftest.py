"""What all tests share: no model hub, and tiny checkpoints written once a run."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.graph_file import load_graph
from omnistage.stages.pick import GRAPHS

if TYPE_CHECKING:
    from support.reference import Reference


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


@pytest.fixture(scope="session")
def reference(tiny_checkpoint: Path) -> "Reference":
    """transformers over the tiny checkpoint."""
    from support.reference import Reference

    return Reference(str(tiny_checkpoint))


@pytest.fixture(scope="module")
def run_directory() -> Iterator[Path]:
    """A folder in memory for channels."""
    run = make_run_directory()
    yield run.path
    run.remove()


@pytest.fixture(scope="module")
def cpu_engine() -> Iterator[None]:
    """The environment of engines that tests start in their own process: as the tiny graph's."""
    graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "tiny")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in graph.stages["thinker"].environment.items():
            patch.setenv(name, str(value))
        yield
