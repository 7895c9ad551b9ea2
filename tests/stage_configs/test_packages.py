"""A package that one kind of stage needs and that is missing hurts that kind only."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.blocked import without

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.packages import not_installed
from omnistage.stage_configs.pick import GRAPHS

FILES = sorted(GRAPHS.glob("*.yaml"))
NEEDED = sorted({package for kind in KINDS.values() for package in kind.needs})
USED = sorted({package for kind in KINDS.values() for package in kind.uses})
CHECK_ALL = """
import json, sys
from typer.testing import CliRunner
from omnistage.server.cli import app
found = {}
for path in sys.argv[1:]:
    done = CliRunner().invoke(app, ["check", path], env={"COLUMNS": "300"})
    found[path] = done.exit_code, done.output
print(json.dumps(found))
"""


def kinds_of(file: Path) -> set[str]:
    return {stage.kind for stage in load_graph(file, "model").stages.values()}


def checked(folder: Path, package: str) -> Mapping[str, tuple[int, str]]:
    """What `omnistage check` answers and prints for each graph file without a package."""
    words = [sys.executable, "-c", CHECK_ALL, *map(str, FILES)]
    done = subprocess.run(words, env=without(folder, [package]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Mapping[str, tuple[int, str]] = json.loads(done.stdout)
    return found


def test_there_are_packages_of_several_kinds() -> None:
    assert {"vllm", "diffusers", "accelerate", "greenlet"} == set(NEEDED)
    assert {"soundfile", "peft", "ftfy"} == set(USED)


@pytest.mark.parametrize("package", [*NEEDED, *USED])
def test_check_names_the_package_where_it_is_needed_and_nowhere_else(
    package: str, tmp_path: Path
) -> None:
    for path, (code, said) in checked(tmp_path, package).items():
        assert code == 0
        concerned = [
            name
            for name in kinds_of(Path(path))
            if package in KINDS[name].needs or package in KINDS[name].uses
        ]
        assert (not_installed(package) in said) == bool(concerned), said
        assert said.count("is not installed") == len(
            [
                stage
                for stage in load_graph(Path(path), "model").stages.values()
                if stage.kind in concerned
            ]
        )


@pytest.mark.parametrize("package", NEEDED)
def test_serve_names_a_package_that_is_needed_before_anything_starts(
    package: str, tmp_path: Path
) -> None:
    """No stage's process starts, so no model's library is loaded for nothing."""
    file = next(
        path for path in FILES if any(package in KINDS[kind].needs for kind in kinds_of(path))
    )
    graph = tmp_path / "graph.yaml"
    graph.write_text("\n".join(line for line in file.read_text().split("\n") if "gpus" not in line))
    command = [sys.executable, "-m", "omnistage.server.cli", "serve", str(graph)]
    done = subprocess.run(
        [*command, "--model", str(tmp_path)],
        env=without(tmp_path / "site", [package]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: stage ")
    assert line.endswith(not_installed(package))


def test_serve_names_ray_and_its_cure_before_anything_starts(tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(
        "placement: ray\nstages: {encoder: {kind: vllm.embedding}}\noutputs: {embedding: encoder}\n"
    )
    command = [sys.executable, "-m", "omnistage.server.cli", "serve", str(graph)]
    done = subprocess.run(
        [*command, "--model", str(tmp_path)],
        env=without(tmp_path / "site", ["ray"]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    cure = "the Python package ray is not installed; pip install 'omnistage[ray]'"
    assert line == f"error: placement ray: {cure}"


def test_a_package_is_installed_by_its_own_name() -> None:
    assert not_installed("PIL") == "the Python package PIL is not installed; pip install pillow"
