"""The package: its folders are seen below `omnistage` only, typed, and light to import."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import omnistage
from omnistage.server import offline

ROOT = Path(__file__).parent.parent
PARTS = ("server", "stages", "connectors", "stage_configs", "bench", "demo")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_a_relative_link_to_its_root_folder(part: str) -> None:
    link = ROOT / ".pkg" / "omnistage" / part
    assert link.is_symlink()
    assert str(link.readlink()) == f"../../{part}"
    assert (link / "py.typed").is_file()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_can_be_imported_below_the_package_only(part: str, tmp_path: Path) -> None:
    program = (
        "import importlib.util as u, sys;"
        f"sys.exit(u.find_spec('omnistage.{part}') is None or u.find_spec('{part}') is not None)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_the_package_offers_each_of_its_names_when_it_is_asked_for() -> None:
    """Stages import the package too: by itself it loads nothing of the gateway."""
    program = (
        "import omnistage, sys;"
        "loaded = [name for name in sys.modules if name.startswith('omnistage.')];"
        "from omnistage import *;"
        "missing = set(omnistage.__all__) - set(dir());"
        "sys.exit(str([loaded, missing]) if loaded or missing else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(omnistage.__all__) == omnistage.__all__
    assert omnistage.__all__ == offline.__all__
    with pytest.raises(AttributeError, match="no attribute 'Onmi'"):
        omnistage.Onmi  # noqa: B018


def test_the_process_of_a_stage_loads_nothing_of_the_gateway() -> None:
    program = (
        "import sys, omnistage.stages.worker.worker;"
        "sys.exit(' '.join(n for n in sys.modules if n.startswith('omnistage.server')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_package_folder_is_typed() -> None:
    assert (ROOT / ".pkg" / "omnistage" / "py.typed").is_file()
    for part in PARTS:
        for init in (ROOT / part).rglob("__init__.py"):
            assert (init.parent / "py.typed").is_file(), init.parent


def test_docker_installs_what_sound_needs_and_a_vllm_that_we_take() -> None:
    lock = (ROOT / "docker" / "lock" / "cuda.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", lock, re.MULTILINE))
    assert {"av", "soundfile"} <= locked.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    written = [*project["dependencies"], *project["optional-dependencies"]["cuda"]]
    wanted = {one.name: one.specifier for one in map(Requirement, written)}
    assert locked["vllm"].partition("+")[0] in wanted["vllm"]


def test_vllm_is_told_about_the_plugin() -> None:
    (plugin,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="omnistage")
    assert plugin.value == "omnistage.stages.vllm.plugin:register"
    assert importlib.util.find_spec(plugin.module) is not None


@pytest.mark.parametrize("group", ["omnistage.families", "omnistage.connectors"])
def test_what_is_installed_registers_what_the_project_says(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = importlib.metadata.distribution("omnistage").entry_points.select(group=group)
    assert {point.name: point.value for point in found} == project["entry-points"][group]
