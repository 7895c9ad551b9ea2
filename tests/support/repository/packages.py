"""The sdist and the wheel of this tree, and environments to install the wheel in."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = (".pkg", "LICENSE", "README.md", "pyproject.toml")
BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
BUILD_WHEEL = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Built:
    """What is handed to others."""

    sdist: Path
    wheel: Path


def build(folder: Path) -> Built:
    """Build the sdist of a copy of the tree, and the wheel of what is in the sdist."""
    dist = folder / "dist"
    dist.mkdir()
    call(sys.executable, "-c", BUILD_SDIST, dist, cwd=copy_of_the_tree(folder / "tree"))
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    call(sys.executable, "-c", BUILD_WHEEL, dist, cwd=unpacked)
    (wheel,) = dist.glob("*.whl")
    return Built(sdist, wheel)


def copy_of_the_tree(folder: Path) -> Path:
    """What setuptools reads, and nothing that an earlier build has left."""
    folder.mkdir()
    links = (ROOT / ".pkg" / "omnistage").iterdir()
    parts = [path.name for path in links if path.is_symlink()]
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*SOURCES, *parts):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with nothing of ours but what is installed in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *words: str | Path, cwd: Path) -> str:
        """What a program of the environment prints."""
        return call(self.folder / "bin" / words[0], *words[1:], cwd=cwd)

    def pip(self, command: str, *words: str | Path, cwd: Path) -> str:
        """Our own pip, for that environment; it asks no index."""
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", self.python]
        offline = ["--no-index"] if command == "install" else []
        return call(*pip, command, "--quiet", *offline, *words, cwd=cwd)


def borrowing_environment(folder: Path, wheel: Path) -> Environment:
    """A new one with the wheel; what the wheel requires is read from the running environment."""
    environment = _new_environment(folder)
    environment.pip("install", "--no-deps", wheel, cwd=folder)
    return environment


def tree_environment(folder: Path) -> Environment:
    """A new one that has this tree as it is, and reads the rest from the running environment."""
    return _new_environment(folder, ROOT / ".pkg")


def _new_environment(folder: Path, *more: Path) -> Environment:
    venv.create(folder, with_pip=False, symlinks=True)
    environment = Environment(folder)
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(environment.run("python", "-c", program, cwd=folder).strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [*map(str, more), *sorted(paths)]
    (site / "borrowed.pth").write_text("\n".join(lines) + "\n")
    return environment


def call(*words: str | Path, cwd: Path) -> str:
    """What a program prints; it sees nothing of this tree by the environment."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
