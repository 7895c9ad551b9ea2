"""The memory that the stages of a model need, read from a file beside its family."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnistage.stage_configs.checkpoint import Checkpoint, UnreadableCheckpoint
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.yaml_document import value_at


class NoNeeds(ValueError):
    """A model's needs are not known, or their file cannot be read."""


class FrozenRecord(BaseModel):
    """A mapping of the file: frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StageNeeds(FrozenRecord):
    """A stage's weights, in GB of 10^9 bytes, and the bytes of a token in its KV cache."""

    name: str
    weights_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    kv_bytes: Annotated[int, Field(ge=0)] = 0


class SmallGraph(FrozenRecord):
    """A graph file with all stages on one GPU of `gpu_gb`, some of them in FP8."""

    file: str
    gpu_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class GraphFiles(FrozenRecord):
    """Graph files of the package: with all stages on one GPU, and the first on its own GPU."""

    shared: str
    split: str
    small: SmallGraph | None = None


class ModelNeeds(FrozenRecord):
    """A model's stages. `config`: the keys by which a folder with such a model is recognized."""

    models: tuple[str, ...]
    config: Json
    graphs: GraphFiles
    stages: tuple[StageNeeds, ...]


def read_needs(path: Path) -> ModelNeeds:
    """Reads a file; raises NoNeeds with the file and the first key that is wrong."""
    try:
        return ModelNeeds.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise NoNeeds(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise NoNeeds(f"{path}: {place}: {problem['msg']}") from error


def all_needs() -> Iterator[ModelNeeds]:
    """Yields the needs of every family that has a file of them."""
    for _, family in FAMILIES.usable():
        for path in family.memory:
            yield read_needs(path)


def needs_of(model: str) -> ModelNeeds:
    """Finds a model by its name or its folder's configuration; raises NoNeeds with those known."""
    known = list(all_needs())
    config = None if any(model in one.models for one in known) else _config(model)
    for one in known:
        if model in one.models or (config is not None and _fits(one.config, config)):
            return one
    names = ", ".join(name for one in known for name in one.models)
    raise NoNeeds(
        f"the memory that {model} needs is not known; it is of: {names}. Lay out others in a graph "
        "file: before a stage loads, it compares its weights with its GPU's free memory. A family "
        "lists the GB of weights and the bytes of a cached token per stage in a file `memory`"
    )


def _config(model: str) -> JsonMap | None:
    """Reads a folder's configuration; a name is not looked up anywhere."""
    if not Path(model).is_dir():
        return None
    try:
        return Checkpoint(model).config
    except UnreadableCheckpoint as error:
        raise NoNeeds(str(error)) from error


def _fits(wanted: Mapping[str, object], config: Mapping[str, object]) -> bool:
    return all(value_at(config, tuple(key.split("."))) == value for key, value in wanted.items())
