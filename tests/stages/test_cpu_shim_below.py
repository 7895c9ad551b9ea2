"""CUDA builds of torch's companions beside its CPU build: every Python below a stage mends them."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnistage.stages.cpu_shim import install_in_children

FINDERS = "import sys; print([type(one).__module__ for one in sys.meta_path])"
OURS = "omnistage.stages.cpu_shim"
CPU = {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.11.0+cpu"}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed; anything else is not."""
    installed = dict(CPU)

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return installed


def child(program: str = FINDERS) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_below_a_stage_mends_them_and_runs_its_own_sitecustomize(
    versions: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OURS not in child()
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('its own')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(own), os.environ["PYTHONPATH"]]))
    install_in_children(tmp_path / "text.site")
    assert OURS in child()
    assert child().startswith("its own")


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.13.0"), ("torch", None), ("torchvision", "0.28.0+cpu"), ("torchvision", None)],
)
def test_builds_that_fit_leave_the_environment_alone(
    name: str, version: str | None, versions: dict[str, str], tmp_path: Path
) -> None:
    versions.pop(name)
    if version is not None:
        versions[name] = version
    before = os.environ["PYTHONPATH"]
    install_in_children(tmp_path / "text.site")
    assert os.environ["PYTHONPATH"] == before
    assert not (tmp_path / "text.site").exists()
