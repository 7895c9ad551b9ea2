"""Where a run's stages are started: on this machine, or on nodes if its graph says so."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

from omnistage.server.placement.nodes import Nodes, OnLoss
from omnistage.server.placement.placed_stage import PlacedStage
from omnistage.server.runtime.processes.importer import Importers
from omnistage.server.runtime.stage_link import StageHandle, StageLauncher
from omnistage.stage_configs.graph import StageGraph

IsReady = Callable[[str], bool]
PATH_STARTS = ("/", "./", "../", "~")  # of what is a folder and no name of the hub's


class Placing(Protocol):
    """An async context around a run, in which `launch` starts stages."""

    @property
    def launch(self) -> StageLauncher:
        """Returns what starts a stage."""

    async def release(self, stage: str) -> None:
        """A replica is gone: what was kept for it can be had by others."""

    def listen(self, on_loss: OnLoss, is_ready: IsReady) -> None:
        """Name who is called when what was under way between two nodes is gone.

        `is_ready` says of a replica whether it is known to be ready.
        """

    async def __aenter__(self) -> Self:
        """Raises PlacementError."""

    async def __aexit__(self, *_: object) -> None:
        """Every stage has ended."""


class PlacementError(Exception):
    """Stages cannot be placed; the message says why."""


class OnThisMachine:
    """Stages are processes of this machine, or what tests have in their place."""

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        environment: Mapping[str, str],
        launch: StageLauncher | None,
    ) -> None:
        self._importers = Importers(graph, directory, environment)
        self.launch = launch or self._importers.launch

    async def release(self, stage: str) -> None:
        """Nothing is kept beside its process."""

    def listen(self, on_loss: OnLoss, is_ready: IsReady) -> None:
        """There is nothing between nodes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._importers.close()


class OnNodes:
    """Stages are on the nodes of a Ray cluster."""

    def __init__(self, graph: StageGraph, directory: Path, environment: Mapping[str, str]) -> None:
        from omnistage.server.placement.ray import RayCluster

        self._graph = with_whole_paths(graph)
        self._directory = directory
        self._environment = environment
        self._cluster = RayCluster(self._graph, directory, environment)

    def launch(self, stage: str, directory: Path) -> StageHandle:
        """A replica of a stage on whichever node there is room for it."""
        spec = self._graph.spec_of(stage)
        model = self._graph.model_of(spec.name)
        return PlacedStage(stage, spec, model, self._nodes, directory, self._is_ready)

    async def release(self, stage: str) -> None:
        """Gives back its room, unless others share it."""
        await self._cluster.release(stage)

    def listen(self, on_loss: OnLoss, is_ready: IsReady) -> None:
        """Name who is called when what was under way between two nodes is gone."""
        self._on_loss = on_loss
        self._is_ready = is_ready

    async def __aenter__(self) -> Self:
        from omnistage.server.placement.ray import NoCluster

        try:
            self._cluster.connect()
        except NoCluster as error:
            raise PlacementError(f"placement ray: {error}") from None
        self._nodes = Nodes(
            self._graph, self._directory, self._environment, self._cluster, self._on_loss
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._nodes.close()
        finally:
            self._cluster.close()


def with_whole_paths(graph: StageGraph) -> StageGraph:
    """The graph whose models are named as another machine can: a folder from the root on."""
    stages = {
        name: stage.model_copy(update={"model": whole_path(graph.model_of(name))})
        for name, stage in graph.stages.items()
    }
    return graph.model_copy(update={"stages": stages, "served_model_name": graph.served_names})


def whole_path(model: str) -> str:
    """A folder's path as it is from any place; the name of a model as it is."""
    is_folder = model.startswith(PATH_STARTS) or Path(model).is_dir()
    return str(Path(model).expanduser().absolute()) if is_folder else model


def placing_of(
    graph: StageGraph,
    directory: Path,
    environment: Mapping[str, str],
    launch: StageLauncher | None = None,
) -> Placing:
    """Returns the placing that the graph names, for processes with this environment.

    `launch`: starts the stages of this machine in place of processes.
    """
    if graph.placement.is_on_nodes:
        return OnNodes(graph, directory, environment)
    return OnThisMachine(graph, directory, environment, launch)
