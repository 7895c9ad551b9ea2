"""The fields of commands to running stages."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omnistage.server.tasks.chat.schema import MAX_NAMES, at_most
from omnistage.stage_configs.declared.sampling import Count, Flag
from omnistage.stage_configs.json_types import Json

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class OfStages(BaseModel):
    """The stages of a command; without it, all that take the command."""

    model_config = ConfigDict(extra="forbid")

    stages: Annotated[list[str], Field(min_length=1), at_most(MAX_NAMES)] | None = None

    @property
    def arguments(self) -> Json:
        """Returns what is sent to the stages."""
        return self.model_dump(exclude={"stages"})


class Wake(OfStages):
    """`tags`: parts of a stage, such as `weights`, `kv_cache`, or a pipeline's components."""

    tags: Annotated[list[Name], Field(min_length=1), at_most(MAX_NAMES)] | None = None


class Sleep(Wake):
    """1: weights go to the host's memory. 2: they are dropped."""

    level: Annotated[Count, Field(ge=1, le=2)] = 1


class LoadWeights(OfStages):
    """`path`: a folder as the stage's own; without it, that one."""

    path: Path | None = None


class AddLora(OfStages):
    """`path`: a file or a folder; `weight_name`: the file in a folder of several."""

    name: Name
    path: Path
    weight_name: Path | None = None
    pinned: Flag = False


class RemoveLora(OfStages):
    """An adapter that was added."""

    name: Name


class PinLora(RemoveLora):
    """A pinned adapter is never evicted."""

    pinned: Flag = True


class StartProfile(OfStages):
    """`prefix`: of the trace's file name."""

    prefix: Name | None = None


class Rpc(OfStages):
    """A method of a stage's worker extension, on all of its ranks between two steps.

    `from_all`: the results of all ranks instead of that of rank 0. Without `reply` it is not
    waited for the other ranks.
    """

    method: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,127}$")]
    args: Annotated[list[Any], at_most(MAX_NAMES)] = Field(default_factory=list)
    reply: Flag = True
    from_all: Flag = False


class Scale(BaseModel):
    """How many replicas of a stage run."""

    model_config = ConfigDict(extra="forbid")

    stage: Annotated[str, Field(min_length=1)]
    replicas: Annotated[Count, Field(ge=1)]


class LoadAdapter(BaseModel):
    """The body of vLLM's /v1/load_lora_adapter: none is replaced in place, experts have one
    format.
    """

    model_config = ConfigDict(extra="forbid")

    lora_name: Name
    lora_path: Path
    load_inplace: Literal[False] = False
    is_3d_lora_weight: Literal[False] = False


class UnloadAdapter(BaseModel):
    """The body of vLLM's /v1/unload_lora_adapter; an adapter's number says no more than its
    name.
    """

    model_config = ConfigDict(extra="forbid")

    lora_name: Name
    lora_int_id: int | None = None
