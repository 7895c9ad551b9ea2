"""Programs for which some packages are not installed, and all the processes that they start."""

import os
from collections.abc import Iterable
from pathlib import Path

from omnistage.stage_configs.families import KINDS

BLOCKED = "OMNISTAGE_TEST_BLOCKED"  # names of modules, with commas
# Python runs a file of this name at every start: it takes the place of what looks for modules.
SITE = '''
import importlib.machinery
import os
import sys

BLOCKED = tuple(os.environ["OMNISTAGE_TEST_BLOCKED"].split(","))
Found = importlib.machinery.PathFinder


def is_blocked(name):
    return any(name == one or name.startswith(one + ".") for one in BLOCKED)


class Finder:
    """Finds what is installed, but for what is blocked: as if that were not."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if is_blocked(name) else Found.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, context):
        if context.name is not None and is_blocked(context.name):
            return iter(())
        return Found.find_distributions(context)

    invalidate_caches = Found.invalidate_caches


sys.meta_path[sys.meta_path.index(Found)] = Finder
'''


def packages_of_others(*kinds: str) -> set[str]:
    """What other kinds need or use, and these do not; and what these can do without."""
    all_of = {package for kind in KINDS.values() for package in (*kind.needs, *kind.uses)}
    return all_of - {package for name in kinds for package in KINDS[name].needs}


def without(folder: Path, packages: Iterable[str]) -> dict[str, str]:
    """The environment of a program that cannot import these."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        BLOCKED: ",".join(packages),
    }
