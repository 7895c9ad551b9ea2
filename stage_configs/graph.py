"""A validated graph of stages: what a YAML file declares, checked before anything loads."""

import difflib
import math
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from omnistage.connectors import CONNECTORS, connector_type
from omnistage.connectors.options import Option, OptionError, checked
from omnistage.stage_configs.determinism import determining, determinism_problem
from omnistage.stage_configs.edge_payloads import NoPayload, carried_between, named
from omnistage.stage_configs.engine_arguments import engine_arguments, value_problem
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.gpus import used_gpus
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.kinds import Payload, Payloads
from omnistage.stage_configs.mps import SHARE, share_problem
from omnistage.stage_configs.own_arguments import BRIDGE, MODEL, own_problem
from omnistage.stage_configs.parallel import PARALLEL_SIZES, Problem, parallel_problem
from omnistage.stage_configs.paths import Ends, StageNames, entries_of, ordered, path_to
from omnistage.stage_configs.placement import (
    NUM_GPUS,
    Amount,
    Placement,
    bundle_of,
    number_problem,
    stage_problem,
)
from omnistage.stage_configs.replicas import MAX_REPLICAS, Replica, replica_name, stage_of
from omnistage.stage_configs.sampling import StageParameters
from omnistage.stage_configs.speculation import speculation_problem

Size = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]
Gpu = Annotated[int, Field(strict=True, ge=0, le=1023)]
Gpus = tuple[Gpu, ...]
GpuLists = tuple[Gpus, ...]
NumReplicas = Annotated[int, Field(strict=True, ge=1, le=MAX_REPLICAS)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = tuple[Annotated[str, Field(min_length=1)], ...]

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

# What leaves from a stage's process, not from its engine.
OF_PROCESSES = frozenset({Payload.TEXT, Payload.TOKENS})

MANY = 40  # names that are not listed

DRAWN = frozenset({"image", "video"})

# Names are parts of channel addresses, where the other end of some is called gateway.
ROLES = "roles"  # an option of stages that read chats
ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
STAGE_NAME = re.compile(r"(?!gateway$)[a-z][a-z0-9_]*")


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that says what is allowed, the most similar first."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5 if len(names) <= MANY else 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(names) > MANY:
        return f"none of the {len(names)} names that are allowed is like it"
    return f"allowed: {', '.join(names) or 'none'}"


def problem(message: str, *place: str | int) -> PydanticCustomError:
    """An error about one place of a graph, below the field whose validator found it."""
    return PydanticCustomError("graph", "{message}", {"message": message, "place": place})


class FrozenModel(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ConnectorSpec(FrozenModel):
    """A connector by name, with its options."""

    name: str = "shm"
    options: dict[str, Option] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "options" not in value:
            return {
                "name": value.get("name", "shm"),
                "options": {key: item for key, item in value.items() if key != "name"},
            }
        return value

    @model_validator(mode="after")
    def _is_known(self) -> "ConnectorSpec":
        if self.name not in CONNECTORS.names:
            message = f"unknown connector {self.name!r}; {nearest(self.name, _for_edges())}"
            raise problem(message, "name")
        kind = connector_type(self.name)
        if not kind.between_processes:
            allowed = ", ".join(_for_edges())
            message = f"connector {self.name!r} works inside one process only; allowed: {allowed}"
            raise problem(message, "name")
        try:
            checked(self.name, kind.options, self.options)
        except OptionError as error:
            raise problem(str(error), "options", error.option) from None
        return self


def _for_edges() -> list[str]:
    """The connectors whose ends may be in two processes."""
    return [name for name, kind in CONNECTORS.usable() if kind.between_processes]


class Chunking(FrozenModel):
    """Sizes of an edge's chunks: the first, a ramp, then always `steady`."""

    first: Size = 1
    ramp: tuple[Size, ...] = ()
    steady: Size = 1

    @property
    def size_list(self) -> list[int]:
        """All sizes; the last repeats."""
        return [self.first, *self.ramp, self.steady]


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
    resources: dict[str, Amount] = {}
    replicas: NumReplicas | None = None
    max_replicas: NumReplicas | None = None
    engine: Json = {}
    options: Json = {}
    environment: dict[str, Option] = {}
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


def _refuse(stage: str, found: Problem | None) -> None:
    """Raise what is wrong with a stage, at its place."""
    if found is not None:
        message, place = found
        raise problem(message, "stages", stage, *place)


def _determined(stage: StageSpec, *, has_gpu: bool) -> StageSpec:
    engine, environment = determining(KINDS[stage.kind], has_gpu=has_gpu)
    update = {
        "engine": {**engine, **stage.engine},
        "environment": {**environment, **stage.environment},
    }
    return stage.model_copy(update=update)


def _is_role(value: object) -> bool:
    return isinstance(value, str) and ROLE.fullmatch(value) is not None


def _has_lists(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, list | tuple) for one in value)


def _check_differ(gpus: tuple[int, ...], *place: int) -> None:
    for number, gpu in enumerate(gpus):
        if gpu in gpus[:number]:
            raise problem(f"GPU {gpu} is there twice", *place, number)


class Edge(FrozenModel):
    """One way from a stage to the next.

    `carries`: the payloads that go along it, where its ends would have a choice.
    """

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    carries: tuple[Payload, ...] = ()
    connector: ConnectorSpec = Field(default_factory=ConnectorSpec)
    chunk: Chunking | Literal["whole"] = Chunking()
    hidden_states: Literal["needed", "all"] = "needed"

    @property
    def chunk_sizes(self) -> list[int]:
        """Sizes of the chunks; none: everything in one."""
        return [] if self.chunk == "whole" else self.chunk.size_list


class Deadlines(FrozenModel):
    """How long each wait may take, in seconds; what waits longer fails and says for what.

    `start_s`: a stage until it is ready. `hang_s`: a ready stage without a sign of life.
    `compile_s`: one whose engine does not answer because it compiles. Per request,
    `first_chunk_s`: until a stage gets its first input or the gateway its first output;
    `next_chunk_s`: from one to the next. `drain_s`: requests in flight when the server is told to
    stop. `command_s`: a command to a stage, and before it sleeps the requests that it still has.
    """

    start_s: Seconds = 1800.0
    hang_s: float = Field(default=20.0, gt=1, allow_inf_nan=False)
    compile_s: Seconds = 600.0
    first_chunk_s: Seconds = 120.0
    next_chunk_s: Seconds = 30.0
    drain_s: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    command_s: Seconds = 600.0


class StageGraph(FrozenModel):
    """Stages, edges and which stage makes which output; acyclic.

    A stage may send to several others and, if its kind joins, receive from several. Each output has
    one entry: a stage without edges to it, which gets the requests for that output. `note`: what of
    the model the graph leaves out, for the log and /v1/models. `served_model_name`: what the model
    is called by clients, one name or several; without it, as `model` says. `voice_aliases`: further
    names of voices, in any case, such as `{alloy: ethan}`. `placement`: where its
    stages run. `deterministic`: the same seed gives the same answer, whatever else runs.
    """

    model: str = ""
    note: str = ""
    served_model_name: Names = ()
    voice_aliases: dict[str, str] = {}
    stages: dict[str, StageSpec]
    edges: tuple[Edge, ...] = ()
    outputs: dict[str, str]
    deadlines: Deadlines = Deadlines()
    placement: Placement = Placement()
    deterministic: bool = False

    @field_validator("served_model_name", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("served_model_name")
    @classmethod
    def _names_differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, name in enumerate(value):
            if name in value[:number]:
                raise problem(f"{name!r} is there twice", number)
        return value

    @field_validator("voice_aliases")
    @classmethod
    def _aliases_differ(cls, value: dict[str, str]) -> dict[str, str]:
        lower = {name.lower(): voice for name, voice in value.items()}
        if len(lower) < len(value):
            raise problem("an alias is given twice, in different case")
        return lower

    @field_validator("stages", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name, spec in value.items():
            if isinstance(spec, dict) and spec.get("name", name) != name:
                raise problem("a stage's name is its key", name, "name")
        return {
            name: {**spec, "name": name} if isinstance(spec, dict) else spec
            for name, spec in value.items()
        }

    @field_validator("edges")
    @classmethod
    def _ends_exist(cls, value: tuple[Edge, ...], info: ValidationInfo) -> tuple[Edge, ...]:
        stages = info.data.get("stages", {})
        for number, edge in enumerate(value):
            for key, name in (("from", edge.source), ("to", edge.target)):
                if name not in stages:
                    raise problem(f"no stage {name!r}; {nearest(name, stages)}", number, key)
            if any(
                (edge.source, edge.target) == (one.source, one.target) for one in value[:number]
            ):
                raise problem(f"a second edge from {edge.source} to {edge.target}", number)
        return value

    @field_validator("outputs")
    @classmethod
    def _are_made(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        stages = info.data.get("stages", {})
        for output, name in value.items():
            if name not in stages:
                raise problem(f"no stage {name!r}; {nearest(name, stages)}", output)
            made = KINDS[stages[name].kind].outputs
            if output not in made:
                makes = ", ".join(sorted(made)) or "no output"
                raise problem(f"stage {name!r} does not make {output!r}; it makes {makes}", output)
        return value

    @model_validator(mode="after")
    def _is_a_graph(self) -> "StageGraph":
        if not self.outputs:
            raise problem("a graph has at least one output", "outputs")
        self._check_placement()
        self._check_memory()
        order = self.order
        if len(order) != len(self.stages):
            stuck = sorted(set(self.stages) - set(order))
            raise problem(f"the edges make a cycle through {', '.join(stuck)}", "edges")
        self._check_joins()
        for number, edge in enumerate(self.edges):
            self._check_payloads(number, edge)
        self._check_hidden_states()
        self._check_own_arguments()
        self._check_gpus()
        self._check_determinism()
        self._check_speculation()
        self._check_entries()
        idle = sorted(set(self.stages) - set(self.path(set(self.outputs))))
        if idle:
            raise problem(f"no output needs stage {idle[0]!r}", "stages", idle[0])
        self._check_names()
        return self

    def _check_joins(self) -> None:
        for name, stage in self.stages.items():
            incoming = self.incoming(name)
            if len(incoming) > 1 and not KINDS[stage.kind].joins:
                sources = " and ".join(edge.source for edge in incoming)
                message = (
                    f"stage {name!r} has {len(incoming)} edges to it, from {sources}; "
                    f"a stage of kind {stage.kind} takes one"
                )
                raise problem(message, "edges", self.edges.index(incoming[-1]))

    def _check_payloads(self, number: int, edge: Edge) -> None:
        try:
            self.carried(edge)
        except NoPayload as error:
            place = ("carries",) if edge.carries else ()
            raise problem(str(error), "edges", number, *place) from None

    def _check_entries(self) -> None:
        for name, stage in self.stages.items():
            kind = KINDS[stage.kind]
            if not self.incoming(name) and not kind.is_entry:
                wanted = " or ".join(named(choice) for choice in kind.takes)
                raise problem(f"stage {name!r} needs an edge that brings it {wanted}", "edges")
        for output in self.outputs:
            self._check_writers(output)
            entries = self.entries({output})
            if len(entries) > 1:
                message = f"an output has one entry; {output} has {', '.join(entries)}"
                raise problem(message, "outputs", output)

    def _check_hidden_states(self) -> None:
        for number, edge in enumerate(self.edges):
            carried = self.carried(edge)
            if edge.hidden_states == "all" and Payload.ROWS not in carried:
                message = f"the edge carries {named(carried)}; hidden states are rows"
                raise problem(message, "edges", number, "hidden_states")

    def _check_writers(self, output: str) -> None:
        """Refuses images of words without a chat whose answer has the words."""
        writers = self.writers(output)
        if output in DRAWN and writers and self.outputs.get("text") not in writers:
            names = " or ".join(sorted(writers))
            message = f"{output} is drawn of what {names} writes, so `text: {names}` is one too"
            raise problem(message, "outputs", output)
        maker = self.stages[self.outputs[output]]
        if output == "audio" and writers and DRAWN & KINDS[maker.kind].outputs:
            message = (
                "a pipeline's audio is made of a request's own words: no edge may bring others"
            )
            raise problem(message, "outputs", output)

    def _check_placement(self) -> None:
        for name, stage in self.stages.items():
            found = stage_problem(self.placement, stage.gpus, stage.num_gpus, stage.resources)
            if found is not None:
                message, key = found
                raise problem(message, "stages", name, key)
        for number, edge in enumerate(self.edges):
            if self.placement.is_on_nodes and edge.connector.name != ConnectorSpec().name:
                message = "on Ray's nodes rings are joined by links: only `shm`"
                raise problem(message, "edges", number, "connector")

    def _check_memory(self) -> None:
        if self.placement.is_on_nodes:
            return  # each stage numbers its GPUs by itself
        shares: dict[int, float] = {}
        for stage in self.stages.values():
            share = stage.engine.get(MEMORY_SHARE, 0.0)
            for gpu in (gpu for replica in stage.all_replicas for gpu in replica.gpus):
                shares[gpu] = shares.get(gpu, 0.0) + share
                # Shares are written in hundredths: a sum may pass 1 by rounding only.
                if shares[gpu] > 1.001:
                    message = f"the stages on GPU {gpu} want {shares[gpu]:.2f} of its memory"
                    raise problem(message, "stages", stage.name)

    def _check_own_arguments(self) -> None:
        for name, stage in self.stages.items():
            kind = KINDS[stage.kind]
            if not kind.is_parallel:
                continue
            is_fed = kind.engine_takes_feed or kind.feeds_itself
            has_bridge = is_fed or bool(self._sent(name) - OF_PROCESSES)
            own = {**MODEL, **(BRIDGE if has_bridge else {}), **kind.sets}
            _refuse(name, own_problem(own, stage.engine))

    def _check_names(self) -> None:
        for name, stage in self.stages.items():
            known = engine_arguments(stage.kind)
            for argument in sorted(stage.engine.keys() - known) if known else ():
                message = f"unknown key; {nearest(argument, known)}"
                raise problem(message, "stages", name, "engine", argument)
            if not KINDS[stage.kind].is_parallel:
                continue
            for argument, value in stage.engine.items():
                if wrong := value_problem(argument, value):
                    raise problem(wrong, "stages", name, "engine", argument)

    def _sent(self, name: str) -> Payloads:
        """Returns what goes along all edges from a stage."""
        return frozenset[Payload]().union(*map(self.carried, self.outgoing(name)))

    def _check_gpus(self) -> None:
        for name, stage in self.stages.items():
            # Text is its process's.
            has_edge = bool(self.incoming(name) or self._sent(name) - {Payload.TEXT})
            for replica in stage.all_replicas:
                _refuse(
                    name, parallel_problem(KINDS[stage.kind], has_edge, replica.gpus, stage.engine)
                )

    def _check_determinism(self) -> None:
        for name, stage in self.stages.items() if self.deterministic else ():
            _refuse(name, determinism_problem(KINDS[stage.kind], stage.engine, stage.environment))

    def _check_speculation(self) -> None:
        for name, stage in self.stages.items():
            _refuse(name, speculation_problem(KINDS[stage.kind], stage.engine))

    @property
    def order(self) -> list[str]:
        """Stages after all that feed them; those in a cycle are left out."""
        return list(ordered(*self._shape))

    @property
    def _shape(self) -> tuple[StageNames, Ends]:
        return tuple(self.stages), tuple((edge.source, edge.target) for edge in self.edges)

    @property
    def served_names(self) -> tuple[str, ...]:
        """Returns what requests may call the model."""
        return self.served_model_name or (self.model,)

    def voice_called(self, name: str | None) -> str | None:
        """Return the voice for which a name is an alias, else the name itself."""
        return None if name is None else self.voice_aliases.get(name.lower(), name)

    @property
    def served_name(self) -> str:
        """Returns what answers call the model."""
        return self.served_names[0]

    def entries(self, outputs: Collection[str]) -> list[str]:
        """The stages that requests for these outputs come to."""
        return list(entries_of(*self._shape, self._makers(outputs)))

    def entry_of(self, output: str) -> str:
        """The stage that requests for this output come to."""
        return entries_of(*self._shape, self._makers((output,)))[0]

    def carried(self, edge: Edge) -> Payloads:
        """Returns what goes along an edge; raises NoPayload if its ends do not agree."""
        return carried_between(self.stages[edge.source], self.stages[edge.target], edge.carries)

    def waits_for(self, output: str) -> set[str]:
        """Outputs of a chat that end before this one begins: texts that a stage on its way waits
        for, or that may take its place.
        """
        writers = self.writers(output) | self.choosers(output)
        return {other for other, maker in self.outputs.items() if maker in writers}

    def choosers(self, output: str) -> set[str]:
        """The stages on the way to this output that may answer a chat by words in its place."""
        maker = self.outputs[output]
        return {name for name in self.path({output}) if KINDS[self.stages[name].kind].chooses} - {
            maker
        }

    def writers(self, output: str) -> set[str]:
        """The stages whose words a stage on the way to this output waits for."""
        path = self.path({output})
        return {
            edge.source
            for edge in self.edges
            if edge.target in path and Payload.TEXT in self.carried(edge)
        }

    @property
    def replicas(self) -> dict[str, Replica]:
        """All that may run, by their names; every edge goes between every pair of replicas."""
        every = (one for stage in self.stages.values() for one in stage.all_replicas)
        return {replica.name: replica for replica in every}

    def spec_of(self, replica: str) -> StageSpec:
        """The stage that a replica is a copy of."""
        return self.stages[stage_of(replica)]

    def model_of(self, name: str) -> str:
        """A stage's checkpoint."""
        return self.stages[name].model or self.model

    def has_gpu(self, name: str) -> bool:
        """Returns whether a stage computes on GPUs.

        One that names none takes the first of this machine; on a cluster's nodes it sees none.
        """
        replicas = self.stages[name].all_replicas
        if self.placement.is_on_nodes:
            return any(replica.gpus for replica in replicas)
        return any(used_gpus(replica.gpus) for replica in replicas)

    def with_engine(self, kind: str | None = None, **arguments: object) -> "StageGraph":
        """The graph whose stages of a kind, or all, have these arguments for their engines.

        Raises ValueError if there is no such stage.
        """
        chosen = [name for name, stage in self.stages.items() if kind in (None, stage.kind)]
        if not chosen:
            raise ValueError(f"there is no stage of kind {kind}")
        stages = {
            name: stage.model_copy(update={"engine": {**stage.engine, **arguments}})
            if name in chosen
            else stage
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})

    @property
    def determined(self) -> "StageGraph":
        """The graph, if it is deterministic with all that its stages need for that."""
        if not self.deterministic:
            return self
        stages = {
            name: _determined(stage, has_gpu=self.has_gpu(name))
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})

    @property
    def undetermined(self) -> list[str]:
        """The stages of a deterministic graph that have no switch for it where they compute."""
        return [
            name
            for name, stage in self.stages.items()
            if self.deterministic and KINDS[stage.kind].is_parallel and not self.has_gpu(name)
        ]

    def with_voices(self, folder: Path) -> "StageGraph":
        """The graph whose stages that keep something of voices keep it in a folder."""
        stages = {
            name: stage.model_copy(update={"options": {"voices": str(folder), **stage.options}})
            if KINDS[stage.kind].stores_voices
            else stage
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": stages})

    @property
    def more_roles(self) -> Collection[str]:
        """Roles that the chat template takes beside OpenAI's, by the option `roles`."""
        if "text" not in self.outputs:
            return ()
        roles: list[str] = self.stages[self.entry_of("text")].options.get(ROLES, [])
        return roles

    def incoming(self, name: str) -> list[Edge]:
        """Edges to a stage."""
        return [edge for edge in self.edges if edge.target == name]

    def outgoing(self, name: str) -> list[Edge]:
        """Edges from a stage."""
        return [edge for edge in self.edges if edge.source == name]

    def sources_of(self, replica: str) -> list[tuple[Edge, str]]:
        """The edges to a replica, each with every replica that it comes from."""
        return [
            (edge, source.name)
            for edge in self.incoming(stage_of(replica))
            for source in self.stages[edge.source].all_replicas
        ]

    def targets_of(self, replica: str) -> list[tuple[Edge, str]]:
        """The edges from a replica, each with every replica that it goes to."""
        return [
            (edge, target.name)
            for edge in self.outgoing(stage_of(replica))
            for target in self.stages[edge.target].all_replicas
        ]

    def path(self, outputs: Collection[str]) -> list[str]:
        """The stages that these outputs need, in order; edges between them are live."""
        return list(path_to(*self._shape, self._makers(outputs)))

    def _makers(self, outputs: Iterable[str]) -> frozenset[str]:
        return frozenset(self.outputs[output] for output in outputs)
