"""A stage of a graph: its kind, its GPUs, its engine's arguments, its replicas."""

import math
import re
from typing import Annotated

from pydantic import (
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from omnistage.connectors.options import Option
from omnistage.stage_configs.declared.placement import (
    NUM_GPUS,
    Amount,
    bundle_of,
    number_problem,
)
from omnistage.stage_configs.declared.problems import FrozenModel, nearest, problem
from omnistage.stage_configs.declared.sampling import StageParameters
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.replicas import MAX_REPLICAS, Replica, replica_name
from omnistage.stage_configs.rules.mps import SHARE, share_problem
from omnistage.stage_configs.rules.parallel import PARALLEL_SIZES

Gpu = Annotated[int, Field(strict=True, ge=0, le=1023)]
Gpus = tuple[Gpu, ...]
GpuLists = tuple[Gpus, ...]
NumReplicas = Annotated[int, Field(strict=True, ge=1, le=MAX_REPLICAS)]

# Arguments of engines that count something; the engines themselves only say so after loading.
ENGINE_SIZES = frozenset(
    {
        "block_size",
        "kv_cache_memory_bytes",
        "max_batch",
        "max_num_batched_tokens",
        "max_num_seqs",
        "num_slots",
        *PARALLEL_SIZES,
    }
)

# vLLM's own argument; one stage's default of it is no promise, so only what is written counts.
MEMORY_SHARE = "gpu_memory_utilization"

SAMPLING = "default_sampling_params"  # a stage's key


# Names are parts of channel addresses, where the other end of some is called gateway.
ROLES = "roles"  # an option of stages that read chats
ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
STAGE_NAME = re.compile(r"(?!gateway$)[a-z][a-z0-9_]*")


class StageSpec(FrozenModel):
    """One stage: its kind, its GPUs, its engine's arguments, its kind's options.

    `model`: its checkpoint, where that is not the graph's. `gpus`: those of each replica, or a list
    for each. `replicas`: how many are started; `max_replicas`: how many may run. `num_gpus`: what
    was written as `gpus` where that is a number, for a stage on a node that a cluster chooses;
    `resources`: what it takes of that node beside them.
    """

    name: str
    kind: str
    model: str = ""
    gpus: Annotated[
        Annotated[Gpus, Tag("all")] | Annotated[GpuLists, Tag("each")],
        Discriminator(lambda value: "each" if _has_lists(value) else "all"),
    ] = ()
    num_gpus: float = 0.0
    resources: dict[str, Amount] = Field(default_factory=dict)
    replicas: NumReplicas | None = None
    max_replicas: NumReplicas | None = None
    engine: Json = Field(default_factory=dict)
    options: Json = Field(default_factory=dict)
    environment: dict[str, Option] = Field(default_factory=dict)
    default_sampling_params: StageParameters = StageParameters()

    @model_validator(mode="before")
    @classmethod
    def _a_number_of_gpus(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        number = value.get("gpus")
        if not isinstance(number, int | float) or isinstance(number, bool):
            if NUM_GPUS in value and "gpus" not in value:
                raise problem("unknown key; did you mean 'gpus'?", NUM_GPUS)
            return value
        message = number_problem(number)
        if message:
            raise problem(message, "gpus")
        return {**value, "gpus": (), NUM_GPUS: number}

    @field_validator("name")
    @classmethod
    def _fits_an_address(cls, value: str) -> str:
        if not STAGE_NAME.fullmatch(value):
            raise ValueError("a name is lower-case letters, digits and _, and not 'gateway'")
        return value

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS:
            raise ValueError(f"unknown kind {value!r}; {nearest(value, KINDS)}")
        return value

    @field_validator("gpus")
    @classmethod
    def _differ(cls, value: Gpus | GpuLists) -> Gpus | GpuLists:
        for number, one in enumerate(value):
            if isinstance(one, tuple):
                if not one:
                    raise problem("a list for each replica has at least one GPU", number)
                _check_differ(one, number)
        _check_differ(tuple(one for one in value if isinstance(one, int)))
        return value

    @field_validator("engine")
    @classmethod
    def _sizes_and_share(cls, value: Json) -> Json:
        for name in ENGINE_SIZES & value.keys():
            size = value[name]
            if size is not None and (type(size) is not int or size < 1):
                raise problem(f"{size!r} is no size: an integer of at least 1", name)
        length = value.get("max_model_len")
        if isinstance(length, int) and length < 1 and length != -1:  # vLLM's word for "what fits"
            raise problem(f"{length} is no length: at least 1, or -1", "max_model_len")
        share = value.get(MEMORY_SHARE, 1)
        if type(share) not in (int, float) or not (math.isfinite(share) and 0 < share <= 1):
            message = f"{share!r} is no share of a GPU's memory: more than 0, at most 1"
            raise problem(message, MEMORY_SHARE)
        return value

    @field_validator("options")
    @classmethod
    def _names_roles(cls, value: dict[str, object]) -> dict[str, object]:
        roles = value.get(ROLES, [])
        if not isinstance(roles, list) or not all(map(_is_role, roles)):
            raise problem("must be a list of names: letters, digits, '_' and '-'", ROLES)
        return value

    @field_validator("environment")
    @classmethod
    def _leaves_the_gpu_whole(cls, value: dict[str, Option]) -> dict[str, Option]:
        message = share_problem(value)
        if message:
            raise problem(message, SHARE)
        return value

    @model_validator(mode="after")
    def _samples(self) -> "StageSpec":
        if self.default_sampling_params.given and not KINDS[self.kind].samples:
            raise problem("is refused: this stage samples nothing", SAMPLING)
        return self

    @model_validator(mode="after")
    def _counts_agree(self) -> "StageSpec":
        if self.most_replicas < self.num_replicas:
            message = f"{self.most_replicas} is less than the {self.num_replicas} of `replicas`"
            raise problem(message, "max_replicas")
        key = "replicas" if self.max_replicas is None else "max_replicas"
        if self._gpu_lists and len(self._gpu_lists) != self.most_replicas:
            message = f"{self.most_replicas}, but `gpus` has lists for {len(self._gpu_lists)}"
            raise problem(f"{message}; the two must be equal", key)
        return self

    @property
    def num_replicas(self) -> int:
        """How many are started."""
        return self.replicas or len(self._gpu_lists) or 1

    @property
    def most_replicas(self) -> int:
        """How many may run."""
        return self.max_replicas or self.num_replicas

    @property
    def all_replicas(self) -> list[Replica]:
        """All that may run, those first that are started; a single one has the stage's name."""
        lists = self._gpu_lists or (self.own_gpus,) * self.most_replicas
        if len(lists) == 1:
            return [Replica(self.name, lists[0])]
        return [Replica(replica_name(self.name, n), gpus) for n, gpus in enumerate(lists)]

    @property
    def _gpu_lists(self) -> tuple[tuple[int, ...], ...]:
        return tuple(one for one in self.gpus if isinstance(one, tuple))

    @property
    def own_gpus(self) -> tuple[int, ...]:
        """Returns the GPUs of every replica, where `gpus` is one list.

        On a node that a cluster chooses they are as its process will number them.
        """
        if self.num_gpus:
            return tuple(range(math.ceil(self.num_gpus)))
        return tuple(one for one in self.gpus if isinstance(one, int))

    @property
    def bundle(self) -> dict[str, float]:
        """Returns what a replica takes of a node that a cluster chooses."""
        return bundle_of(self.num_gpus, self.resources)


def _is_role(value: object) -> bool:
    return isinstance(value, str) and ROLE.fullmatch(value) is not None


def _has_lists(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, list | tuple) for one in value)


def _check_differ(gpus: tuple[int, ...], *place: int) -> None:
    for number, gpu in enumerate(gpus):
        if gpu in gpus[:number]:
            raise problem(f"GPU {gpu} is there twice", *place, number)
