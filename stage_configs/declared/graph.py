"""A graph as it was declared, and what follows of it: ways, entries, replicas, payloads."""

from collections.abc import Collection, Iterable
from typing import Annotated

from pydantic import (
    Field,
)

from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.declared.paths import Ends, StageNames, entries_of, ordered, path_to
from omnistage.stage_configs.declared.placement import (
    Placement,
)
from omnistage.stage_configs.declared.problems import FrozenModel
from omnistage.stage_configs.declared.stage import ROLES, StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.gpus import used_gpus
from omnistage.stage_configs.kinds import Payload, Payloads
from omnistage.stage_configs.replicas import Replica, stage_of
from omnistage.stage_configs.rules.edge_payloads import carried_between

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = tuple[Annotated[str, Field(min_length=1)], ...]


class Deadlines(FrozenModel):
    """Limits each wait, in seconds; what waits longer fails and says for what.

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


class DeclaredGraph(FrozenModel):
    """Stages, edges and which stage makes which output; nothing is checked yet.

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
    voice_aliases: dict[str, str] = Field(default_factory=dict)
    stages: dict[str, StageSpec]
    edges: tuple[Edge, ...] = ()
    outputs: dict[str, str]
    deadlines: Deadlines = Deadlines()
    placement: Placement = Placement()
    deterministic: bool = False

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
