"""Measured figures of a model, which a file beside its family has, and who has some."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnistage.stage_configs.checkpoint import Checkpoint, UnreadableCheckpoint
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import GRAPHS
from omnistage.stage_configs.yaml_document import value_at

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Times = Annotated[dict[Count, Positive], Field(min_length=1)]


class NoFigures(ValueError):
    """There are none of a model, or they cannot be read."""


class Record(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Record):
    """Where a figure is from: the command that measured it and the table that shows it."""

    figure: str
    how: str
    command: str
    table: str


class Answer(Record):
    """What every request asks for: tokens of its prompt and its text, frames of its sound."""

    prompt_tokens: Count
    text_tokens: Count
    frames: Count
    frame_s: Positive


class GatewayFigures(Record):
    """`event_ms` of a core for each event to a client, and the bytes of a second of sound."""

    event_ms: Positive
    before_ms: Positive
    after_ms: Positive
    bytes_a_second: Positive


class WriterFigures(Record):
    """A stage that writes a token or a frame a step. `late_steps`: until an output leaves.

    `sums_ms`: what a step of several tensor-parallel ranks takes for their sums, beside its part.
    """

    name: str
    does: Literal["write text", "write frames"]
    weights_gb: Positive
    kv_bytes: Count
    max_num_seqs: Count
    step_ms: Times
    prompt_ms: Times
    late_steps: int = 0
    sums_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class DecoderFigures(Record):
    """A stage that makes sound: by the frames of a piece, a batch by its rows."""

    name: str
    does: Literal["decode frames"]
    weights_gb: Positive
    decode_ms: Annotated[dict[Count, Times], Field(min_length=1)]
    batch_frames: Count


class Graphs(Record):
    """Graph files: with all stages on one GPU, and with the first on a GPU of its own."""

    cell: str
    split: str


class Figures(Record):
    """What was measured of one model on one kind of GPU.

    `config`: what the configuration of a folder with such a model has. `share`: what a batch takes
    of a GPU while it runs, so how much stages slow each other down there.
    """

    models: tuple[str, ...]
    config: dict[str, Any]
    gpu: str
    graphs: Graphs
    answer: Answer
    share: Positive
    gateway: GatewayFigures
    stages: tuple[Annotated[WriterFigures | DecoderFigures, Field(discriminator="does")], ...]
    sources: tuple[Source, ...]

    @property
    def audio_s(self) -> float:
        """The sound of one answer."""
        return self.answer.frames * self.answer.frame_s

    def graph(self, name: str) -> Path:
        """A graph file of the package, by its name."""
        return GRAPHS / name


def read_figures(path: Path) -> Figures:
    """The figures in a file; NoFigures with the file and the first key that is wrong."""
    try:
        return Figures.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise NoFigures(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise NoFigures(f"{path}: {place}: {problem['msg']}") from error


def all_figures() -> Iterator[Figures]:
    """Those of every family that has some."""
    for _, family in FAMILIES.usable():
        for path in family.figures:
            yield read_figures(path)


def figures_of(model: str) -> Figures:
    """By the model's name, or by the configuration in its folder; NoFigures says whose exist."""
    known = list(all_figures())
    config = None if any(model in one.models for one in known) else _config(model)
    for one in known:
        if model in one.models or (config is not None and _fits(one.config, config)):
            return one
    names = ", ".join(name for one in known for name in one.models)
    raise NoFigures(f"there are no measured figures of {model}; there are some of: {names}")


def _config(model: str) -> Mapping[str, Any] | None:
    """Of a folder; a name that is not among the figures' is not looked up anywhere."""
    if not Path(model).is_dir():
        return None
    try:
        return Checkpoint(model).config
    except UnreadableCheckpoint as error:
        raise NoFigures(str(error)) from error


def _fits(wanted: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(value_at(config, tuple(key.split("."))) == value for key, value in wanted.items())
