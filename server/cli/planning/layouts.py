"""Layouts of a model's stages on GPUs: which fit, and their graph files."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import yaml

from omnistage.server.cli.planning.gpus import Gpus
from omnistage.stage_configs.figures import Figures, WriterFigures
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.overrides import Override, overridden

GB = 10**9
LEFT_FREE = 0.1  # of a GPU: what activations, CUDA graphs and processes take was not measured
MAX_VOICES = 3  # replicas of a cell: its first stage, and its gateway's core, feed no more
WHOLE_SHARE = 0.9  # of a GPU that an engine takes unless its graph says so

RANKS = 2  # of the first stage where it has several

Form = Literal["cells", "split", "tensor"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a replica of a stage holds of its GPU, in GB. `cache`: its KV cache, and in a graph that
    gives a share of the GPU its activations, too.
    """

    stage: str
    weights: float
    cache: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.cache


@dataclass(frozen=True)
class Layout:
    """Cells of the same shape. `voices`: 0 if all stages share a GPU, otherwise on how many GPUs
    all stages but the first have a replica each. `ranks`: GPUs over which the first stage is one;
    if they are more than one, the others have a replica on each of them.
    """

    figures: Figures
    graph: StageGraph
    raw: dict[str, Any]
    gpus: Gpus
    voices: int
    ranks: int = 1

    @property
    def form(self) -> Form:
        """What such a layout is called."""
        if self.ranks > 1:
            return "tensor"
        return "split" if self.voices else "cells"

    @property
    def gpus_per_cell(self) -> int:
        """GPUs of one server."""
        return self.ranks if self.ranks > 1 else 1 + self.voices

    @property
    def cells_of_a_machine(self) -> int:
        """As many as there are GPUs for in one: no cell spans two."""
        return min(self.gpus.count, self.gpus.machine) // self.gpus_per_cell

    @property
    def cells(self) -> int:
        """Of all machines."""
        whole, rest = divmod(self.gpus.count, self.gpus.machine)
        return whole * (self.gpus.machine // self.gpus_per_cell) + rest // self.gpus_per_cell

    @property
    def spare(self) -> int:
        """GPUs that no cell uses."""
        return self.gpus.count - self.cells * self.gpus_per_cell

    def replicas(self, place: int) -> tuple[tuple[int, ...], ...]:
        """The GPUs of a cell for each replica of stage number `place` of the figures."""
        if place == 0:
            return (tuple(range(self.ranks)),)
        first = 1 if self.form == "split" else 0
        return tuple((first + one,) for one in range(max(1, self.voices)))

    @cached_property
    def held(self) -> dict[int, list[Held]]:
        """What each GPU of a cell holds."""
        found: dict[int, list[Held]] = {gpu: [] for gpu in range(self.gpus_per_cell)}
        for place, one in enumerate(self.figures.stages):
            is_writer = isinstance(one, WriterFigures)
            for gpus in self.replicas(place):
                weights = one.weights_gb / len(gpus)
                cache = self._cache_gb(one.name, weights) if is_writer else 0.0
                for gpu in gpus:
                    found[gpu].append(Held(one.name, weights, cache))
        return found

    def _cache_gb(self, stage: str, weights_gb: float) -> float:
        engine = self.graph.stages[stage].engine
        fixed = engine.get("kv_cache_memory_bytes")
        if fixed is not None:
            return float(fixed) / GB
        share = float(engine.get("gpu_memory_utilization", WHOLE_SHARE))
        return share * self.gpus.kind.memory_gb - weights_gb

    @property
    def problem(self) -> str:
        """Why it does not fit on these GPUs; empty if it does."""
        if not self.cells:
            given = min(self.gpus.count, self.gpus.machine)
            return f"it wants {self.gpus_per_cell} GPUs of a machine, {given} are given"
        memory = self.gpus.kind.memory_gb
        for each in self.held.values():
            wanted = sum(one.total for one in each)
            room = memory * (1 - LEFT_FREE)
            names = ", ".join(one.stage for one in each)
            if wanted > room + 1e-6:
                return f"{names}: {wanted:.1f} GB of {memory:g}, of which {room:.1f} may be used"
            for one in each:
                if one.cache < self._least_gb(one.stage):
                    least = one.weights + self._least_gb(one.stage)
                    return f"{one.stage}: at least {least:.1f} GB, it gets {one.total:.1f}"
        return ""

    def _least_gb(self, stage: str) -> float:
        """The KV cache of one request of the greatest length."""
        figures = next(one for one in self.figures.stages if one.name == stage)
        if not isinstance(figures, WriterFigures):
            return 0.0
        length = self.graph.stages[stage].engine.get("max_model_len", 1)
        return float(length) * figures.kv_bytes / GB

    @cached_property
    def file(self) -> dict[str, Any]:
        """The graph file of one cell."""
        raw = copy.deepcopy(self.raw)
        for place, one in enumerate(self.figures.stages):
            stage, groups = raw["stages"][one.name], [[*gpus] for gpus in self.replicas(place)]
            stage["gpus"] = groups[0] if len(groups) == 1 else groups
            if len(groups[0]) > 1:
                stage.setdefault("engine", {})["tensor_parallel_size"] = len(groups[0])
        return raw

    def text(self, command: str) -> str:
        """The file as it is written, with how it came about."""
        head = f"# One cell of {title(self)}, by: {command}\n"
        return head + yaml.dump(self.file, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Lists of plain values in one line, as people write them; what is there twice, twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        is_plain = not any(isinstance(one, dict) for one in sequence)
        return super().represent_sequence(tag, sequence, is_plain)


def title(layout: Layout) -> str:
    """A layout in words."""
    each = "1 GPU" if layout.gpus_per_cell == 1 else f"{layout.gpus_per_cell} GPUs"
    cells = "1 cell" if layout.cells == 1 else f"{layout.cells} cells"
    spare = f", {layout.spare} spare" if layout.spare else ""
    return f"{layout.gpus.count} x {layout.gpus.kind.name}: {cells} of {each}{spare}"


def layouts(
    figures: Figures, model: str, gpus: Gpus, changes: Sequence[Override] = ()
) -> Iterator[Layout]:
    """Every layout that there is, whether or not it fits: cells, split ones, and tensor."""
    cell, split = figures.graph(figures.graphs.cell), figures.graph(figures.graphs.split)
    forms = ((cell, 1, [0]), (split, 1, range(1, MAX_VOICES + 1)), (cell, RANKS, [RANKS]))
    for path, ranks, all_voices in forms:
        graph = load_graph(path, model, changes)
        raw = {**yaml.safe_load(path.read_text("utf-8")), "model": model}
        for voices in all_voices:
            if voices < max(2, gpus.count) or ranks > 1:
                yield Layout(figures, graph, overridden(raw, changes), gpus, voices, ranks)
