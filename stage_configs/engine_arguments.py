"""The names of the arguments that the engine of a stage takes, known before anything loads."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from omnistage.stage_configs.kinds import KINDS

SOURCE = Path("engine", "arg_utils.py")  # of vLLM
CLASSES = ("EngineArgs", "AsyncEngineArgs")
OURS = frozenset({"model"})  # the graph says it


def engine_arguments(kind: str) -> frozenset[str]:
    """Those of a kind's engine; none if they are not known."""
    known = KINDS[kind]
    return vllm_arguments() if known.is_parallel else known.arguments


@cache
def vllm_arguments() -> frozenset[str]:
    """Those of the vLLM that is installed; none if there is none, or if it keeps them elsewhere.

    They are read from its source: to import it would take seconds and load all of torch.
    """
    package = find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return frozenset()
    file = Path(package.submodule_search_locations[0]) / SOURCE
    if not file.is_file():
        return frozenset()
    return _fields(ast.parse(file.read_text(encoding="utf-8"))) - OURS


def _fields(module: ast.Module) -> frozenset[str]:
    """The fields of its dataclasses of arguments."""
    return frozenset(
        field.target.id
        for found in module.body
        if isinstance(found, ast.ClassDef) and found.name in CLASSES
        for field in found.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )
