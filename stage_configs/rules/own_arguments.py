"""Engine arguments that a stage of vLLM sets itself: what a graph file gives them is refused.

Each table has the arguments of one reason. A kind names those of its stages (`Kind.sets`), so that
a graph file is refused before anything starts; stages refuse them again where they set them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Own:
    """An argument of the stage's own. `value`: what it is set to, which may be written as well."""

    why: str
    value: Any = None


Owned = Mapping[str, Own]

# Of every engine.
MODEL: Owned = {
    "model": Own("the `model` of the graph or of the stage names it"),
    "served_model_name": Own("the `served_model_name` of the graph names it"),
    "aggregate_engine_logging": Own("vLLM's log of statistics is off; /metrics has them", False),
}
# Of an engine from which rows or codes leave, or into which they come.
BRIDGE: Owned = {
    "kv_transfer_config": Own(
        "vLLM has one KV connector, and what goes along this stage's edges goes by omnistage's; "
        "beside it the KV that another one loads would not be computed, so its rows never leave"
    )
}
# Of an engine whose requests wait for inputs from outside.
LATE_INPUTS: Owned = {
    "scheduler_cls": Own("omnistage's scheduler holds requests whose next input has not come")
}
# Of an engine with a model class of omnistage's.
MODEL_CLASS: Owned = {"hf_overrides": Own("it chooses this kind's model class")}
ROWS_OF_ALL_POSITIONS: Owned = {
    "enable_prefix_caching": Own(
        "what it reads from the cache would not be computed, so its rows never leave", False
    )
}
TALKER: Owned = {
    **MODEL_CLASS,
    **LATE_INPUTS,
    "enable_prefix_caching": Own("equal tokens of a talker have different inputs", False),
    # The stage's process needs a request's first code, and then all others at its end.
    "stream_interval": Own("codes leave from the engine, by the edge", 1 << 30),
}
TEXT_ENCODER: Owned = {**MODEL_CLASS, **ROWS_OF_ALL_POSITIONS}


def own_problem(own: Owned, engine: Mapping[str, object]) -> tuple[str, tuple[str, ...]] | None:
    """Returns what is wrong with arguments that are the stage's own, and the key; None: nothing
    is.
    """
    for name, one in own.items():
        given = engine.get(name)
        is_same = type(given) is type(one.value) and given == one.value
        if given not in (None, "", {}) and not is_same:
            allowed = "" if one.value is None else f", as {_written(one.value)}"
            return f"is set by this stage itself{allowed}: {one.why}", ("engine", name)
    return None


def with_own(engine: Mapping[str, object], own: Owned) -> dict[str, object]:
    """Engine arguments with the stage's own values. Raises ValueError if others were written."""
    refuse_own(engine, own)
    values = {name: one.value for name, one in own.items() if one.value is not None}
    return {**engine, **values}


def refuse_own(engine: Mapping[str, object], own: Owned) -> None:
    """Raise ValueError if arguments that are the stage's own are written."""
    found = own_problem(own, engine)
    if found is not None:
        message, (_, name) = found
        raise ValueError(f"{name} {message}")


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
