"""Reading a graph from YAML: every error names file, line and key."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from omnistage.connectors.registry import Unusable
from omnistage.stage_configs.declared.edge import Chunking, ConnectorSpec, Edge
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.declared.placement import NUM_GPUS, LinkPlace, Placement
from omnistage.stage_configs.declared.problems import nearest
from omnistage.stage_configs.declared.sampling import StageParameters
from omnistage.stage_configs.declared.stage import SAMPLING, StageSpec
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.models.embedded import with_folders
from omnistage.stage_configs.overrides import Override, OverrideError, overridden
from omnistage.stage_configs.yaml_document import Document, Place, YamlProblem, dotted, parse

KINDS_OF_VALUES = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "a string",
    "string_too_short": "a string of at least one character",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


class GraphError(ValueError):
    """A graph file cannot be used."""


def load_graph(
    path: Path, model: str | None = None, overrides: Sequence[Override] = ()
) -> StageGraph:
    """The graph in a file; `model` replaces the file's own. Raises GraphError.

    Names of embedded checkpoints become their folders.
    `overrides` change single keys; an error about one of them names it in place of the file.
    """
    document = _read(path)
    value = document.value if model is None else {**document.value, "model": model}
    try:
        changed = with_folders(overridden(value, overrides))
    except (OverrideError, Unusable) as error:
        raise GraphError(str(error)) from error
    try:
        return StageGraph.model_validate(changed).determined
    except ValidationError as error:
        blamed = _blamed(error, changed, overrides)
        if not blamed:
            _validate(path, document, value)
            blamed = f"with {', '.join(override.typed for override in overrides)}"
        message = _describe(error, _document_of(changed)).partition(": ")[2]
        raise GraphError(f"{blamed}: {message}") from error


def _read(path: Path) -> Document:
    """A document whose value is a mapping; raises GraphError."""
    try:
        document = parse(_text(path))
    except YamlProblem as error:
        key = f"{error.key}: " if error.key else ""
        raise GraphError(f"{path}:{error.line}: {key}{error}") from error
    if not isinstance(document.value, dict):
        line, _ = document.locate(())
        raise GraphError(f"{path}:{line}: a graph is a mapping with stages, edges and outputs")
    return document


def _validate(path: Path, document: Document, value: object) -> None:
    """Raise GraphError if the file is wrong without any override."""
    try:
        StageGraph.model_validate(value)
    except ValidationError as error:
        raise GraphError(f"{path}:{_describe(error, document)}") from error


def _blamed(error: ValidationError, changed: object, overrides: Sequence[Override]) -> str:
    """The last override of the place that is wrong, or all below it; empty if there are none."""
    document = _document_of(changed)
    _, wrong = document.locate(_place(_first(error)))
    places = {
        override.typed: document.locate(tuple(_index(part) for part in override.place))[1]
        for override in overrides
    }
    above = [typed for typed, place in places.items() if wrong[: len(place)] == place]
    below = [typed for typed, place in places.items() if wrong and place[: len(wrong)] == wrong]
    return ", ".join(above[-1:] or below)


def _index(part: str | int) -> str | int:
    return int(part) if isinstance(part, str) and part.isdecimal() else part


def _document_of(value: object) -> Document:
    """A value as if it had been read: its places can be found, its lines mean nothing."""
    return parse(yaml.safe_dump(value, sort_keys=False))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlProblem(line, "", "the file is no text in UTF-8") from error


def _describe(error: ValidationError, document: Document) -> str:
    """Line, key and message of the first problem."""
    problems, problem = error.errors(), _first(error)
    place = _place(problem)
    line, written = document.locate(place)
    if problem["type"] == "extra_forbidden":
        message = f"unknown key; {nearest(str(place[-1]), _keys_at(place))}"
    elif problem["type"] == "missing":
        written = (*written, place[-1])
        message = "the key is missing"
    else:
        # A value that may have several forms has one problem for each.
        same = [one for one in problems if document.locate(_place(one)) == (line, written)]
        message = _message(problem, [_expected(one) for one in same])
    return f"{line}: {dotted(written) or 'the graph'}: {message}"


def _first(error: ValidationError) -> Mapping[str, object]:
    """The problem to tell of: a misspelt key is also a missing one, and its own error says more."""
    problems = error.errors()
    return next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])


def _place(problem: JsonMap) -> Place:
    place: Place = (*problem["loc"], *problem.get("ctx", {}).get("place", ()))
    return place


def _expected(problem: JsonMap) -> str | None:
    """Returns what would have been right; None if the problem's own message is all there is."""
    known = KINDS_OF_VALUES.get(problem["type"])
    if known is not None:
        return known
    message = str(problem["msg"])
    start = "Input should be "
    return message.removeprefix(start) if message.startswith(start) else None


def _message(problem: Mapping[str, object], expected: list[str | None]) -> str:
    if expected[0] is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    wanted = " or ".join(dict.fromkeys(one for one in expected if one is not None))
    given = problem["input"]
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return f"must be {wanted}, not {kinds.get(type(given)) or repr(given)}"


def _keys_at(place: Place) -> list[str]:
    """The keys that the innermost model around a place has."""
    models: dict[str | int, type[BaseModel]] = {
        "stages": StageSpec,
        "edges": Edge,
        "connector": ConnectorSpec,
        "chunk": Chunking,
        "deadlines": Deadlines,
        "placement": Placement,
        "link": LinkPlace,
        SAMPLING: StageParameters,
    }
    model: type[BaseModel] = StageGraph
    for part in place[:-1]:
        model = models.get(part, model)
    hidden = {"name", NUM_GPUS} if model is StageSpec else set()
    return [field.alias or name for name, field in model.model_fields.items() if name not in hidden]
