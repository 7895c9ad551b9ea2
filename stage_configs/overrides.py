"""Changes to a graph file that are made without editing it: what `--stage` and its kin stand for.

`--stage NAME.KEY=VALUE` sets a key of a stage or, for short, an argument of its engine; `--set
KEY=VALUE` sets any key of the file; `--set-default NAME.PARAMETER=VALUE` sets a stage's default
sampling. VALUE is YAML. docs/options.md has the rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.stage_configs.declared.problems import nearest
from omnistage.stage_configs.declared.stage import SAMPLING, StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.rules.engine_arguments import engine_arguments
from omnistage.stage_configs.yaml_document import Place, YamlProblem, dotted, parse

STAGE, ANY, DEFAULT, NAMES = "--stage", "--set", "--set-default", "--served-model-name"
DETERMINISTIC, ALIAS = "--deterministic", "--voice-alias"
STAGE_KEYS = frozenset(StageSpec.model_fields) - {"name"}
GRAPH_KEYS = frozenset(StageGraph.model_fields)


class OverrideError(ValueError):
    """An override that cannot be made; the message begins with it as it was typed."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value for one place of a graph file; `typed`: what a message calls it."""

    typed: str
    place: Place
    value: Any

    def error(self, message: str) -> OverrideError:
        """Returns what is wrong with it."""
        return OverrideError(f"{self.typed}: {message}")


def stage_override(text: str) -> Override:
    """`NAME.KEY=VALUE`: a key of the stage, else an argument of its engine."""
    name, key, value = _of_stage(STAGE, text)
    place = key if key[0] in STAGE_KEYS else ("engine", *key)
    return Override(f"{STAGE} {text}", ("stages", name, *place), value)


def any_override(text: str) -> Override:
    """`KEY=VALUE`: any key of a graph file, with the numbers of items in lists."""
    key, value = _split(ANY, text)
    override = Override(f"{ANY} {text}", tuple(key.split(".")), value)
    if override.place[0] not in GRAPH_KEYS:
        raise override.error(f"unknown key; {nearest(str(override.place[0]), GRAPH_KEYS)}")
    return override


def default_override(text: str) -> Override:
    """`NAME.PARAMETER=VALUE`: what a stage samples with where a request does not say it."""
    name, key, value = _of_stage(DEFAULT, text)
    return Override(f"{DEFAULT} {text}", ("stages", name, SAMPLING, *key), value)


def name_override(names: Sequence[str]) -> Override:
    """Sets what the model is called in requests and answers; OverrideError for an empty name."""
    if not all(names):
        raise OverrideError(f"{NAMES}: a name has at least one character")
    typed = " ".join(f"{NAMES} {name}" for name in names)
    return Override(typed, ("served_model_name",), list(names))


def alias_override(text: str) -> Override:
    """Returns the change of `NAME=VOICE`, a further name of a voice; raises OverrideError."""
    name, sign, voice = text.partition("=")
    if not (sign and name and voice):
        raise OverrideError(f"{ALIAS} {text}: must be NAME=VOICE, such as alloy=ethan")
    return Override(f"{ALIAS} {text}", ("voice_aliases", name), voice)


def deterministic_override() -> Override:
    """The same seed gives the same answer, whatever else runs."""
    return Override(DETERMINISTIC, ("deterministic",), True)


def overridden(graph: JsonMap, overrides: Iterable[Override]) -> Json:
    """A graph file's value with these changes, a later one over an earlier; OverrideError."""
    changed: Any = dict(graph)
    for override in overrides:
        _check_stage(changed, override)
        changed = _with(changed, override.place, override)
    return dict(changed)


def _of_stage(flag: str, text: str) -> tuple[str, Place, object]:
    key, value = _split(flag, text)
    name, *rest = key.split(".")
    if not rest:
        raise OverrideError(f"{flag} {text}: must be NAME.KEY=VALUE, with the name of a stage")
    return name, tuple(rest), value


def _split(flag: str, text: str) -> tuple[str, object]:
    """A key, and its value as YAML has it; nothing behind the sign is YAML's null."""
    key, sign, value = text.partition("=")
    if not sign or not all(key.split(".")):
        form = "KEY=VALUE" if flag == ANY else "NAME.KEY=VALUE"
        raise OverrideError(f"{flag} {text}: must be {form}, the parts of the key joined by dots")
    try:
        return key, parse(value).value if value.strip() else None
    except YamlProblem as problem:
        raise OverrideError(f"{flag} {text}: the value is no YAML: {problem}") from problem


def _check_stage(graph: Mapping[str, object], override: Override) -> None:
    """The stage is there, and it has the key."""
    place, stages = override.place, graph.get("stages")
    if place[0] != "stages" or len(place) < 3 or not isinstance(stages, dict):
        return
    name, key, *rest = map(str, place[1:])
    if name not in stages:
        raise override.error(f"no stage {name!r}; {nearest(name, stages)}")
    kind = stages[name].get("kind") if isinstance(stages[name], dict) else None
    is_known = isinstance(kind, str) and kind in KINDS
    arguments = engine_arguments(str(kind)) if is_known else frozenset[str]()
    if key == "engine" and rest and arguments and rest[0] not in arguments:
        is_short = override.typed.startswith(f"{STAGE} {name}.{rest[0]}")
        known = arguments | STAGE_KEYS if is_short else arguments
        raise override.error(f"unknown key {rest[0]!r}; {nearest(rest[0], known)}")


def _with(value: object, place: Place, override: Override) -> object:
    """A value in which one place is another: aliases share what they stand for, so it is copied."""
    if not place:
        return override.value
    part, rest = place[0], place[1:]
    if isinstance(value, list):
        number = _number(value, part, place, override)
        return [*value[:number], _with(value[number], rest, override), *value[number + 1 :]]
    if not isinstance(value, dict | None):
        above = dotted(override.place[: len(override.place) - len(place)])
        raise override.error(f"{above} is {value!r}, which has no keys: set {above} as a whole")
    inner = value or {}
    return {**inner, part: _with(inner.get(part), rest, override)}


def _number(items: Sequence[object], part: str | int, place: Place, override: Override) -> int:
    if str(part).isdecimal() and int(part) < len(items):
        return int(part)
    above = dotted(override.place[: len(override.place) - len(place)])
    allowed = f"0 to {len(items) - 1}" if items else "none"
    raise override.error(f"{above} is a list; the numbers of its items are {allowed}")
