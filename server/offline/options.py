"""Options of a graph's start: those of `omnistage serve` that are not of HTTP."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from omnistage.server.offline.errors import StartFailed
from omnistage.server.options.declared import given_fields
from omnistage.server.options.gateway import RunKeywords, RunOptions
from omnistage.stage_configs.declared.problems import nearest
from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.overrides import STAGE_KEYS, Override
from omnistage.stage_configs.packages import missing_features, missing_packages
from omnistage.stage_configs.pick import find_graph
from omnistage.stage_configs.rules.mps import inherited_share_problem

logger = logging.getLogger(__name__)

Overrides = Mapping[str, JsonMap]

MAPPINGS = ("engine", "options", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions(RunOptions):
    """Options of a graph in a program."""

    max_requests: int = 256  # in the graph at once; others wait for them
    progress: bool = True


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """The choice of a graph, and changes of it."""

    model: str
    graph_file: str | None = None
    stages: Overrides = field(default_factory=dict)
    load_format: str | None = None
    offload: str | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)

    def resolve(self) -> StageGraph:
        """The checked graph; raises StartFailed."""
        try:
            graph = self._changed()
            if self.load_format is not None:
                graph = graph.with_engine(load_format=self.load_format)
            if self.offload is not None:
                graph = graph.with_engine("diffusers", offload=self.offload)
        except ValueError as error:  # a GraphError is one
            raise StartFailed(str(error), code="invalid_graph") from error
        return graph

    def _changed(self) -> StageGraph:
        """The graph of the file or of the model, with what is said of stages and of deadlines."""
        target, model = self.graph_file or self.model, self.model if self.graph_file else None
        graph = find_graph(target, model, list(self._changes()))
        if not graph.model:
            raise ValueError(f"{target}: it names no model; give it as `graph_file` beside `model`")
        for name in self.stages:  # one of which nothing is said changes nothing
            if name not in graph.stages:
                raise ValueError(f"stages: no stage {name!r}; {nearest(name, graph.stages)}")
        return graph

    def _changes(self) -> Iterator[Override]:
        """Returns what is said of stages, each key alone, and of deadlines."""
        for stage, given in self.stages.items():
            for key, value in given.items():
                yield from _of_key(stage, key, value)
        for name, value in self.deadlines.items():
            yield Override(f"deadlines[{name!r}]", ("deadlines", name), value)


class OmniOptions(RunKeywords, total=False):
    """Keywords of Omni and AsyncOmni: options of `omnistage serve`, and some of the graph.

    `graph`: a graph file for the model. `stages`: for a stage by its name, keys of the graph file,
    or arguments of its engine. `deadlines`: those of the graph file. `progress`: whether bars show
    on a terminal.
    """

    graph: str | Path
    stages: Overrides
    load_format: Literal["auto", "dummy"]
    offload: Literal["sequential", "layerwise"]
    deadlines: Mapping[str, float]
    max_requests: int
    progress: bool


def chosen(
    model: str | Path | StageGraph, options: OmniOptions
) -> tuple[GraphChoice | StageGraph, OfflineOptions]:
    """Part the keywords into those of the graph and those of its run; raises TypeError."""
    unknown = options.keys() - OmniOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    run = given_fields(OfflineOptions, options)
    run |= {name: options[name] for name in ("max_requests", "progress") if name in options}
    if isinstance(model, StageGraph):
        return model, OfflineOptions(**run)
    graph_file = options.get("graph")
    choice = GraphChoice(
        str(model),
        None if graph_file is None else str(graph_file),
        options.get("stages", {}),
        options.get("load_format"),
        options.get("offload"),
        options.get("deadlines", {}),
    )
    return choice, OfflineOptions(**run)


def _of_key(stage: str, key: str, value: object) -> Iterator[Override]:
    """A key of a stage, else an argument of its engine; of a mapping each item alone."""
    typed = f"stages[{stage!r}][{key!r}]"
    if key in MAPPINGS and isinstance(value, Mapping):
        for name, item in value.items():
            yield Override(f"{typed}[{name!r}]", ("stages", stage, key, name), item)
    else:
        place = (key,) if key in STAGE_KEYS else ("engine", key)
        yield Override(typed, ("stages", stage, *place), value)


def check_machine(graph: StageGraph) -> None:
    """Raise StartFailed for a graph whose GPUs or packages this machine does not have or give."""
    is_here = not graph.placement.is_on_nodes
    if is_here:
        _check_gpus(graph)
    for sentence in missing_packages(graph):
        raise StartFailed(sentence, code="invalid_graph")
    for sentence in missing_features(graph):
        logger.warning("%s", sentence)
    uses_gpus = is_here and any(map(graph.has_gpu, graph.stages))
    if uses_gpus and (sentence := inherited_share_problem()):
        raise StartFailed(sentence, code="invalid_graph")


def _check_gpus(graph: StageGraph) -> None:
    count = len(visible_gpus())
    for replica in graph.replicas.values():
        for gpu in replica.gpus:
            if gpu >= count:
                message = f"stage {replica.name} wants GPU {gpu}; this machine has {count}"
                raise StartFailed(message, code="invalid_graph")
