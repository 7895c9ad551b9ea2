"""Finds classes of Diffusers in its source: nothing is imported."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PIPELINES = "pipelines"


def source_folder(name: str = PIPELINES) -> Path | None:
    """Return a folder of Diffusers, None where Diffusers is not installed."""
    spec = find_spec("diffusers")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / name


def classes_named(name: str, folder_name: str = PIPELINES) -> Iterator[ast.ClassDef]:
    """Yield the classes of a name in a folder of Diffusers."""
    folder = source_folder(folder_name)
    if folder is None or not name.isidentifier():
        return
    declared = re.compile(rf"^class {name}\b", re.MULTILINE)
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text("utf-8")
        if name in text and declared.search(text):
            parts = ast.parse(text).body
            yield from (one for one in parts if isinstance(one, ast.ClassDef) and one.name == name)


def method_of(made: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return a method in the body of a class, None if it has none of that name."""
    methods = (one for one in made.body if isinstance(one, ast.FunctionDef))
    return next((one for one in methods if one.name == name), None)
