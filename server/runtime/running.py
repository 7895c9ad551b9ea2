"""Knows what runs of a graph: how its replicas are, which take requests, what they were told."""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.changes import Arguments, Change, Changes
from omnistage.server.runtime.command import Commander
from omnistage.server.runtime.readiness import check_open
from omnistage.server.runtime.stage_link import OwnedStage, StageLink
from omnistage.server.runtime.stage_record import StageState
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.loading import Loading, read_loading
from omnistage.stages.messages.to_gateway import Lora

logger = logging.getLogger(__name__)


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


class OwnedReplicas(RunningReplicas):
    """Replicas that can be closed to requests, given commands, and kept alike within a stage."""

    _links: dict[str, OwnedStage]

    def __init__(self, graph: StageGraph, directory: Path) -> None:
        super().__init__(graph, directory)
        self._links = {}
        self.commander = Commander(graph.deadlines.command_s)
        self._changes = Changes()
        self._repeating: set[asyncio.Task[None]] = set()

    # Requests

    def refuse_requests(self, links: Collection[StageLink]) -> None:
        """No request comes to these replicas from now on."""
        for link in self._owned(links):
            link.refuse_requests()

    def accept_requests(self, links: Collection[StageLink]) -> None:
        """Requests come to these replicas again, but for those of which something sleeps."""
        for link in self._owned(links):
            link.accept_requests()

    def note_overdue(self, path: Collection[StageLink], limit_s: float) -> None:
        """A request waited for longer than `limit_s` for whichever of these does not get on."""
        for link in self._owned(path):
            link.note_overdue(limit_s)

    def _owned(self, links: Collection[StageLink]) -> Iterator[OwnedStage]:
        """These, but for those that have been removed meanwhile."""
        return (link for link in self._links.values() if link in links)

    # Commands

    def note_asleep(self, link: StageLink, parts: tuple[str, ...]) -> None:
        """A stage has answered that these parts of it sleep now."""
        self._links[link.name].note_asleep(parts)

    def note_loras(self, link: StageLink, loras: Sequence[Lora]) -> None:
        """A stage has answered that it has these adapters now."""
        self._links[link.name].note_loras(tuple(loras))

    def note_change(self, links: Collection[StageLink], command: str, arguments: Arguments) -> None:
        """These have carried out a command: replicas of their stages that start later do too."""
        for stage in {link.stage for link in links}:
            if self.graph.stages[stage].most_replicas > 1:
                self._changes.note(stage, command, arguments)
        for link in self._owned(links):
            link.note_done((command, arguments))

    def note_missed(self, links: Collection[StageLink], command: str, arguments: Arguments) -> None:
        """These have not done what others of their stages have; one that loads will be told."""
        for link in self._owned(links):
            if link.is_ready:
                logger.error("stage %s takes no requests: it differs", link.name)
                link.note_missed([*link.record.missed, (command, arguments)])

    def repeat_changes(self, link: OwnedStage) -> None:
        """A replica is ready: make it as the others of its stage are.

        Until then it takes no request.
        """
        if changes := self._changes.of(link.stage):
            link.note_missed(changes)
            repeating = asyncio.create_task(self._repeat(link, changes))
            self._repeating.add(repeating)
            repeating.add_done_callback(self._repeating.discard)

    async def _repeat(self, link: OwnedStage, changes: Sequence[Change]) -> None:
        for command, arguments in changes:
            try:
                answer = await self.commander.send(link, command, arguments)
            except ApiError as error:
                logger.error("stage %s takes no requests: it differs: %s", link.name, error)
                continue
            if "loras" in answer:
                link.note_loras(tuple(msgspec.convert(answer["loras"], list[Lora])))
            link.note_done((command, arguments))

    def fail_commands(self, error: ApiError) -> None:
        """No stage answers any command that it was sent."""
        for link in self._links.values():
            self.commander.fail(link, error)
