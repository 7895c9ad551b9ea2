"""The description of a family of models: its `FAMILY`, which an entry point names.

The module of a `FAMILY` is imported by every process, the command line among them. So it imports no
model library: it names what is large by a dotted path, `module:name`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Kind

GRAPHS = Path(__file__).resolve().parent  # where the graph files of our own families are


@dataclass(frozen=True, slots=True)
class Picked:
    """The graph file for a model, and what of the model it leaves out: a sentence, or nothing.

    `is_last_resort`: it would do for many models, so a family that knows this one comes first.
    """

    file: Path
    note: str = ""
    is_last_resort: bool = False


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A model that `omnistage tiny` writes, by dotted paths of functions.

    `write` gets the folder and a seed. `write_real_size` gets the folder: the real sizes without
    weights; empty if there is no such function.
    """

    write: str
    write_real_size: str = ""


def _picks_nothing(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Returns None: the family is served by graph files only."""
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is also its entry point's, and each kind is called so, or begins with it and a dot.

    `vllm_models`: dotted paths of classes by the architecture that vLLM shall know them by. `pick`:
    the graph that serves a model on a machine with so many GPUs; None if the model is of another
    family. `tiny`: by the model's name. `benches`: dotted paths of functions by the name of the
    command below `omnistage bench`; typer reads their parameters, and a ValueError is told in one
    line. `pipelines`: dotted paths of PipelineProfiles, what Diffusers' classes of a model need of
    their own, by the models' names. `memory`: files of the memory that models need, for `omnistage
    plan --gpus`.
    """

    name: str
    kinds: Mapping[str, Kind]
    vllm_models: Mapping[str, str] = field(default_factory=dict)
    pick: Callable[[Checkpoint, int], Picked | None] = _picks_nothing
    tiny: Mapping[str, TinyModel] = field(default_factory=dict)
    benches: Mapping[str, str] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    memory: tuple[Path, ...] = ()
