"""What a graph is started with: those options of `omnistage serve` that are not of HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnistage.server.errors import ApiError
from omnistage.server.http.fields import parse
from omnistage.server.media.decode_room import NUM_BYTES
from omnistage.server.offline.errors import StartFailed
from omnistage.server.runtime.mps_daemon import Mps
from omnistage.server.telemetry.logs import LogLevel
from omnistage.stage_configs.gpus import used_gpus, visible_gpus
from omnistage.stage_configs.graph import StageGraph, StageSpec, nearest
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.mps import inherited_share_problem
from omnistage.stage_configs.pick import pick_graph

MAX_REQUESTS = 256  # in the graph at once; others wait for them
Overrides = Mapping[str, Mapping[str, Any]]

# Keys of a stage in a graph file; any other key is an argument of its engine.
STAGE_KEYS = frozenset(StageSpec.model_fields) - {"name"}
MAPPINGS = ("engine", "options", "environment")


@dataclass(frozen=True, slots=True)
class Options:
    """How much at once, how long, from where media come, and what is told meanwhile."""

    max_requests: int = MAX_REQUESTS
    timeout_s: float | None = None
    decode_bytes: int = NUM_BYTES
    media_path: Path | None = None
    media_domains: tuple[str, ...] = ()
    mps: Mps = Mps.AUTO
    log_level: LogLevel = LogLevel.INFO
    progress: bool = True


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Which graph, and what of it is changed."""

    model: str
    graph_file: str | None = None
    stages: Overrides = field(default_factory=dict)
    load_format: str | None = None
    offload: str | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)

    def resolve(self) -> StageGraph:
        """The checked graph; raises StartFailed."""
        try:
            graph = with_overrides(self._graph_of_the_file(), self.stages, self.deadlines)
            if self.load_format is not None:
                graph = graph.with_engine(load_format=self.load_format)
            if self.offload is not None:
                graph = graph.with_engine("diffusers", offload=self.offload)
        except ValueError as error:  # a GraphError is one
            raise StartFailed(str(error), code="invalid_graph") from error
        return graph

    def _graph_of_the_file(self) -> StageGraph:
        if self.graph_file is not None:
            return load_graph(Path(self.graph_file), self.model)
        if self.model.endswith((".yaml", ".yml")):
            graph = load_graph(Path(self.model))
            if not graph.model:
                raise GraphError(f"{self.model}: it names no model: give both, model and graph")
            return graph
        picked = pick_graph(self.model, len(visible_gpus()))
        return load_graph(picked.file, self.model).model_copy(update={"note": picked.note})


def with_overrides(
    graph: StageGraph, stages: Overrides, deadlines: Mapping[str, float]
) -> StageGraph:
    """The graph with these keys in place of its own, checked again; raises ValueError."""
    if not stages and not deadlines:
        return graph
    said = graph.model_dump(by_alias=True)
    for name, given in stages.items():
        if name not in said["stages"]:
            raise ValueError(f"stages: no stage {name!r}; {nearest(name, said['stages'])}")
        _override(said["stages"][name], given)
    said["deadlines"] |= deadlines
    try:
        return parse(StageGraph, said)
    except ApiError as error:
        raise ValueError(error.message) from error


def _override(stage: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in MAPPINGS:
            stage[key] = {**stage[key], **value}
        elif key in STAGE_KEYS:
            stage[key] = value
        else:
            stage["engine"] = {**stage["engine"], key: value}


def check_machine(graph: StageGraph) -> None:
    """Raise StartFailed for a graph whose GPUs this machine does not have or does not give."""
    count = len(visible_gpus())
    for stage in graph.stages.values():
        for gpu in stage.gpus:
            if gpu >= count:
                message = f"stage {stage.name} wants GPU {gpu}; this machine has {count}"
                raise StartFailed(message, code="invalid_graph")
    uses_gpus = any(used_gpus(stage.gpus) for stage in graph.stages.values())
    if uses_gpus and (sentence := inherited_share_problem()):
        raise StartFailed(sentence, code="invalid_graph")
