"""Reads what runs of a graph: the states of its replicas, and which of them take requests."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from omnistage.server.runtime.readiness import check_open
from omnistage.server.runtime.stage_link import (
    StageLink,
)
from omnistage.server.runtime.stage_record import StageState
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.loading import Loading, read_loading
from omnistage.stages.messages.to_gateway import (
    Lora,
)


class RunningReplicas:
    """Knows the replicas that run; their fleet alone writes their records."""

    _links: Mapping[str, StageLink]  # of each replica that runs

    def __init__(self, graph: StageGraph, directory: Path) -> None:
        self.graph = graph
        self._directory = directory

    @property
    def unready(self) -> Mapping[str, StageState]:
        """The replicas of stages that cannot serve, and why."""
        return {
            link.name: link.record.state
            for stage in self.graph.stages
            if not any(link.is_ready for link in self.replicas_of(stage))
            for link in self.replicas_of(stage)
        }

    @property
    def closed(self) -> Mapping[str, str]:
        """The ready replicas of stages that take no requests, and why they do not."""
        return {
            link.name: "differs" if link.record.missed else "asleep"
            for stage in self.graph.stages
            if not any(link.is_open for link in self.replicas_of(stage))
            for link in self.replicas_of(stage)
            if link.is_ready
        }

    @property
    def is_broken(self) -> bool:
        """Returns whether a stage has ended, with all of its replicas, and is not started again."""
        lost = [link.stage for link in self._links.values() if link.record.is_lost]
        return any(lost.count(stage) == len(self.replicas_of(stage)) for stage in set(lost))

    @property
    def health(self) -> Mapping[str, JsonMap]:
        """Returns what each replica last said of itself."""
        loading = self.loading
        return {
            name: {
                **link.record.health,
                "phase": str(loading[name].phase) if name in loading else "",
            }
            for name, link in self._links.items()
        }

    @property
    def loading(self) -> Mapping[str, Loading]:
        """Returns how far each replica is that loads."""
        return {
            name: read_loading(self._directory, name) or Loading()
            for name, link in self._links.items()
            if link.record.state is StageState.LOADING
        }

    @property
    def voices(self) -> Sequence[str]:
        """The voices that the graph's stages know."""
        return sorted({name for link in self._links.values() for name in link.record.speakers})

    @property
    def loras(self) -> Sequence[Lora]:
        """The adapters of the texts' entry stage that are models of their own."""
        if "text" not in self.graph.outputs:
            return ()
        return self.one_of(self.graph.entry_of("text")).record.loras or ()

    @property
    def stages(self) -> Mapping[str, StageLink]:
        """Every replica that runs, as it is now; a single one has the name of its stage."""
        return self._links

    def is_ready(self, name: str) -> bool:
        """Returns whether a replica runs and has said that it is ready."""
        return name in self._links and self._links[name].is_ready

    def replicas_of(self, stage: str) -> Sequence[StageLink]:
        """Returns the replicas of one stage, at least one."""
        return [link for link in self._links.values() if link.stage == stage]

    def one_of(self, stage: str) -> StageLink:
        """A replica that can tell what all of the stage have in common: a ready one, if any is."""
        return max(self.replicas_of(stage), key=lambda link: (link.is_equal, link.is_ready))

    def open_path(
        self, outputs: Collection[str], goes_on: bool = False
    ) -> Sequence[Sequence[StageLink]]:
        """Returns, for each stage on the path to `outputs`, its replicas that accept requests.

        Raises ApiError if there is none of some stage. A request that goes on with an answer is
        taken also while a stage lets its last ones finish.
        """
        return [self._open_replicas(stage, goes_on) for stage in self.graph.path(outputs)]

    def _open_replicas(self, stage: str, goes_on: bool) -> Sequence[StageLink]:
        links = self.replicas_of(stage)
        is_open = [link for link in links if link.is_open]
        if not is_open and goes_on:
            is_open = [link for link in links if link.is_equal]
        if not is_open:
            check_open(self.one_of(stage))
        return is_open
