"""The package of tests/outside_package as if it were installed: two stages that load at once."""

import os
import tomllib
from pathlib import Path

import pytest
from support.installed import Installed

PACKAGE = Path(__file__).parents[2] / "outside_package"
SOURCE = PACKAGE / "src"
NAME = "omnistage_shout"


def install_shout(folder: Path, patch: pytest.MonkeyPatch) -> Installed:
    """Into this process, and into all that it starts from now on; close what comes back."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    told = folder / f"{NAME}-{project['version']}.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = (
        f"[{group}]\n{key} = {value}\n" for group, names in groups for key, value in names.items()
    )
    (told / "entry_points.txt").write_text("\n".join(lines))
    for path in (str(SOURCE), str(folder)):
        patch.syspath_prepend(path)
    before = os.environ.get("PYTHONPATH")
    paths = [str(folder), str(SOURCE), *([before] if before else [])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return Installed(folder, patch)


def shout_model(folder: Path) -> Path:
    """A checkpoint whose answers end in one `!`, twice."""
    from omnistage_shout.tiny import write

    write(folder, 0)
    return folder
