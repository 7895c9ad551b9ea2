"""The arguments that the engine of a stage takes, by name and type, before anything loads."""

import ast
from collections.abc import Collection, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from omnistage.stage_configs.families import KINDS

# Of vLLM: where classes are, below its package.
SOURCE = Path("engine", "arg_utils.py")
CLASSES = ("EngineArgs", "AsyncEngineArgs")
PROFILER_SOURCE = Path("config", "profiler.py")
PROFILER_CLASSES = ("ProfilerConfig",)
OURS = frozenset({"model"})  # the graph says it
# Types as vLLM writes them, and in words.
SCALARS: Mapping[str, tuple[type, str]] = {
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
}


def engine_arguments(kind: str) -> frozenset[str]:
    """Returns the arguments of a kind's engine; none if they are not known."""
    known = KINDS[kind]
    return vllm_arguments() if known.is_parallel else known.arguments


def vllm_arguments() -> frozenset[str]:
    """Returns the arguments of the installed vLLM; none without one, or if it keeps them
    elsewhere.
    """
    return frozenset(_vllm_types()) - OURS


def profiler_fields() -> frozenset[str]:
    """Returns the fields of vLLM's `profiler_config`; none if they are not known."""
    return frozenset(_types(PROFILER_SOURCE, PROFILER_CLASSES))


def is_switch(argument: str) -> bool:
    """Returns whether an argument of vLLM's engine is true or false."""
    return _vllm_types().get(argument, "").startswith("bool")


def value_problem(argument: str, value: object) -> str | None:
    """Returns what is wrong with the value of a number or a switch of vLLM's; None: nothing is.

    It is read as vLLM reads it: "8" is an integer, too.
    """
    names = [name for name in _vllm_types().get(argument, "").split(" | ") if name != "None"]
    if value is None or len(names) != 1 or names[0] not in SCALARS:
        return None
    scalar, words = SCALARS[names[0]]
    try:
        TypeAdapter(scalar).validate_python(value)
    except ValidationError:
        return f"must be {words}, not {value!r}"
    return None


@cache
def _vllm_types() -> Mapping[str, str]:
    """Each argument's type, as it is written."""
    return _types(SOURCE, CLASSES)


def _types(source: Path, classes: Collection[str]) -> Mapping[str, str]:
    """The fields of classes of vLLM, each with its type as it is written.

    They are read from vLLM's source: to import it would take seconds and load all of torch.
    """
    package = find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return {}
    file = Path(package.submodule_search_locations[0]) / source
    if not file.is_file():
        return {}
    return {
        field.target.id: ast.unparse(field.annotation)
        for found in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(found, ast.ClassDef) and found.name in classes
        for field in found.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
