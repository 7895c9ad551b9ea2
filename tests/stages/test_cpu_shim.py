"""Builds for CUDA beside torch's CPU build do not keep our processes from their imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_LIBRARY = "raise OSError('libcudart.so.13: cannot open shared object file')"
LOADER = """
def _load_lib(name):
    raise OSError("libcudart.so.13: cannot open shared object file")
"""
TORCHVISION = """
def _has_ops():
    return HAS_OPS
"""
TORCH = """
class Library:
    def __init__(self, name, kind):
        print(name, kind)
    def define(self, schema):
        print("define", schema.split("(")[0])
"""


def write(folder: Path, **modules: str) -> None:
    """Packages of these names; `a__b` is a module or package b in a."""
    for name, text in modules.items():
        *packages, _ = name.split("__")
        for depth in range(1, len(packages) + 1):
            package = folder.joinpath(*packages[:depth])
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.write_text(text)


def run(folder: Path, program: str, torch: str = "2.13.0+cpu") -> subprocess.CompletedProcess[str]:
    """In a Python without site-packages, and so without what a .pth there installs.

    `torch`: the version that is installed beside the packages of the folder.
    """
    metadata = folder / f"torch-{torch}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    path = os.pathsep.join([str(ROOT / ".pkg"), str(folder)])
    words = [sys.executable, "-S", "-c", program]
    return subprocess.run(words, env={"PYTHONPATH": path}, capture_output=True, text=True)


def test_a_torchcodec_that_does_not_load_is_absent_to_those_who_ask(tmp_path: Path) -> None:
    write(tmp_path, torchcodec=NO_LIBRARY)
    ask = "\ntry:\n    import torchcodec\nexcept ImportError:\n    print('absent')"
    assert "OSError" in run(tmp_path, ask).stderr
    assert run(tmp_path, f"import omnistage.stages{ask}").stdout == "absent\n"


def test_a_torchaudio_whose_library_does_not_load_goes_on_without_it(tmp_path: Path) -> None:
    write(tmp_path, torchaudio___extension__utils=LOADER)
    ask = "from torchaudio._extension.utils import _load_lib\nprint(_load_lib('x'))"
    assert "OSError" in run(tmp_path, ask).stderr
    assert run(tmp_path, f"import omnistage.stages\n{ask}").stdout == "False\n"


@pytest.mark.parametrize("has_ops", [False, True])
def test_the_operators_of_a_torchvision_without_its_library_are_declared(
    has_ops: bool, tmp_path: Path
) -> None:
    text = TORCHVISION.replace("HAS_OPS", str(has_ops))
    write(tmp_path, torchvision__extension=text, torch__library=TORCH)
    ask = "import torch.library, omnistage.stages, torchvision.extension"
    done = run(tmp_path, ask)
    declared = "torchvision FRAGMENT\ndefine nms\ndefine qnms\n"
    assert (done.stdout, done.stderr) == ("" if has_ops else declared, "")


def test_nothing_is_touched_beside_a_build_for_cuda(tmp_path: Path) -> None:
    write(tmp_path, torchcodec=NO_LIBRARY)
    done = run(tmp_path, "import omnistage.stages, torchcodec", torch="2.13.0+cu130")
    assert "OSError: libcudart" in done.stderr
    assert "ImportError" not in done.stderr


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    write(tmp_path, torchcodecs=NO_LIBRARY)
    assert "OSError" in run(tmp_path, "import omnistage.stages, torchcodecs").stderr
