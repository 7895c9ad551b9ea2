"""Reading a graph from YAML: every error names file, line and key."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from omnistage.stages.graph import (
    Chunking,
    ConnectorSpec,
    Edge,
    StageGraph,
    StageSpec,
    nearest,
)

Location = tuple[str | int, ...]


class GraphError(ValueError):
    """A graph file cannot be used."""


def load_graph(path: Path, model: str | None = None) -> StageGraph:
    """The graph in a file; `model` replaces the file's own. Raises GraphError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"{path}: {error}") from error
    try:
        value = yaml.safe_load(text)
        lines = _lines(yaml.compose(text, yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise GraphError(f"{path}:{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise GraphError(f"{path}:1: {error}") from error
    if not isinstance(value, dict):
        raise GraphError(f"{path}:1: a graph is a mapping with stages, edges and outputs")
    if model is not None:
        value["model"] = model
    try:
        return StageGraph.model_validate(value)
    except ValidationError as error:
        raise GraphError(_describe(path, error, lines)) from error


def _lines(node: yaml.Node | None, at: Location = ()) -> dict[Location, int]:
    """The line of every key and item, by its place in the document."""
    if node is None:
        return {}
    found = {at: node.start_mark.line + 1}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value)
            if place in found:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value}: the key is there twice", problem_mark=key.start_mark
                )
            found |= _lines(value, place)
            found[place] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            found |= _lines(item, (*at, number))
    return found


def _describe(path: Path, error: ValidationError, lines: dict[Location, int]) -> str:
    """The first problem, with the nearest line that the file has for it."""
    problems = error.errors()
    # A misspelt key is also a missing one: its own error says more.
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    place = (*problem["loc"], *problem.get("ctx", {}).get("place", ()))
    line, written = 1, list[str | int]()
    for part in place:
        # Where a value has several forms, the place also names the form: no part of the file.
        if (*written, part) in lines:
            written.append(part)
            line = lines[tuple(written)]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = f"unknown key; {nearest(str(place[-1]), _keys_at(place))}"
    elif problem["type"] == "missing":
        written.append(place[-1])
        message = "the key is missing"
    key = ".".join(str(part) for part in written) or "the graph"
    return f"{path}:{line}: {key}: {message}"


def _keys_at(place: Location) -> list[str]:
    """The keys that the innermost model around a place has."""
    models: dict[str | int, type[BaseModel]] = {
        "stages": StageSpec,
        "edges": Edge,
        "connector": ConnectorSpec,
        "chunk": Chunking,
    }
    model: type[BaseModel] = StageGraph
    for part in place[:-1]:
        model = models.get(part, model)
    hidden = {"name"} if model is StageSpec else set()
    return [field.alias or name for name, field in model.model_fields.items() if name not in hidden]
