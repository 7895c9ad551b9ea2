"""Packages that are installed for one test, as pip would leave them, but for their files' list."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from omnistage.connectors import CONNECTORS
from omnistage.connectors.registry import every_entry_point, registered
from omnistage.stage_configs.families import FAMILIES, KINDS

FAMILY = """
from omnistage.stage_configs.family import Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind
"""


class Installed:
    """A folder of the import path; each package in it registers by entry points."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._modules: list[str] = []
        patch.syspath_prepend(str(folder))
        for registry in (FAMILIES, CONNECTORS):
            patch.setattr(registry, "_loaded", {})
        patch.setattr(KINDS, "_own", {})  # a test before this one may have set, and restored, some
        self._read_again()

    def package(self, name: str, entry_points: Mapping[str, Mapping[str, str]], code: str) -> None:
        """A module of this code, and for each group the names with what is in the module."""
        module = name.replace("-", "_")
        self._modules.append(module)
        (self._folder / f"{module}.py").write_text(dedent(code))
        told = self._folder / f"{module}-1.0.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = (
            f"[{group}]\n" + "".join(f"{key} = {module}:{value}\n" for key, value in names.items())
            for group, names in entry_points.items()
        )
        (told / "entry_points.txt").write_text("\n".join(lines))
        self._read_again()

    def family(self, package: str, name: str, code: str) -> None:
        names = {"omnistage.families": {name: "FAMILY"}}
        self.package(package, names, FAMILY + dedent(code))

    def close(self) -> None:
        """Nothing of the packages is known any more."""
        for module in self._modules:
            sys.modules.pop(module, None)
        self._read_again()

    def _read_again(self) -> None:
        every_entry_point.cache_clear()
        registered.cache_clear()
        importlib.invalidate_caches()
