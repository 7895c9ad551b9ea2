"""Layouts of a model's stages on GPUs: which fit, and their graph files."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import yaml

from omnistage.server.cli.planning.gpus import Gpus
from omnistage.stage_configs.family import GRAPHS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.models.memory_needs import ModelNeeds, StageNeeds
from omnistage.stage_configs.overrides import Override, overridden

GB = 10**9
LEFT_FREE = 0.1  # of a GPU: what activations, CUDA graphs and processes take was not measured
MAX_VOICES = 3  # replicas beside one first stage, which feeds no more
WHOLE_SHARE = 0.9  # of a GPU that an engine takes unless its graph says so

RANKS = 2  # of the first stage where it has several

Form = Literal["shared", "split", "tensor"]


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """A replica's part of a GPU's memory, in GB.

    `cache`: its KV cache, and in a graph that gives a share of the GPU its activations, too.
    """

    stage: StageNeeds
    weights: float
    cache: float

    @property
    def total(self) -> float:
        return self.weights + self.cache


@dataclass(frozen=True)
class Layout:
    """Servers of the same shape on GPUs.

    `voices`: 0 if all stages share a GPU, otherwise on how many GPUs all stages but the first have
    a replica each. `ranks`: GPUs over which the first stage is one; if they are more than one, the
    others have a replica on each of them.
    """

    needs: ModelNeeds
    graph: StageGraph
    raw: Json
    gpus: Gpus
    voices: int
    ranks: int = 1

    @property
    def form(self) -> Form:
        """Names the layout."""
        if self.ranks > 1:
            return "tensor"
        return "split" if self.voices else "shared"

    @property
    def gpus_per_server(self) -> int:
        return self.ranks if self.ranks > 1 else 1 + self.voices

    @property
    def servers_of_a_machine(self) -> int:
        """Returns how many servers a machine has GPUs for: no server spans two."""
        return min(self.gpus.count, self.gpus.machine) // self.gpus_per_server

    @property
    def servers(self) -> int:
        """Returns how many servers all machines have GPUs for."""
        whole, rest = divmod(self.gpus.count, self.gpus.machine)
        return whole * (self.gpus.machine // self.gpus_per_server) + rest // self.gpus_per_server

    @property
    def spare(self) -> int:
        """Returns how many GPUs no server uses."""
        return self.gpus.count - self.servers * self.gpus_per_server

    def replicas(self, place: int) -> tuple[tuple[int, ...], ...]:
        """Returns the GPUs of a server for each replica of its stage number `place`."""
        if place == 0:
            return (tuple(range(self.ranks)),)
        first = 1 if self.form == "split" else 0
        return tuple((first + one,) for one in range(max(1, self.voices)))

    @cached_property
    def usage(self) -> dict[int, list[GpuUsage]]:
        """Returns what each GPU of a server holds."""
        found: dict[int, list[GpuUsage]] = {gpu: [] for gpu in range(self.gpus_per_server)}
        for place, one in enumerate(self.needs.stages):
            for gpus in self.replicas(place):
                weights = one.weights_gb / len(gpus)
                cache = self._cache_gb(one.name, weights) if one.kv_bytes else 0.0
                for gpu in gpus:
                    found[gpu].append(GpuUsage(one, weights, cache))
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
        """Says why it does not fit on these GPUs; empty if it does."""
        if not self.servers:
            given = min(self.gpus.count, self.gpus.machine)
            return f"a server wants {self.gpus_per_server} GPUs of a machine, which has {given}"
        memory = self.gpus.kind.memory_gb
        for each in self.usage.values():
            wanted = sum(one.total for one in each)
            room = memory * (1 - LEFT_FREE)
            names = ", ".join(one.stage.name for one in each)
            if wanted > room + 1e-6:
                return f"{names} want {wanted:.1f} GB, and {room:.1f} of {memory:g} GB may be used"
            for one in each:
                least = one.weights + self._least_cache_gb(one.stage)
                if one.total < least:
                    return f"{one.stage.name}: at least {least:.1f} GB, it gets {one.total:.1f}"
        return ""

    def _least_cache_gb(self, stage: StageNeeds) -> float:
        """Returns the KV cache of one request of the greatest length."""
        length = self.graph.stages[stage.name].engine.get("max_model_len", 1)
        return float(length) * stage.kv_bytes / GB

    @cached_property
    def file(self) -> Json:
        """Returns the graph file of one server."""
        raw = copy.deepcopy(self.raw)
        for place, one in enumerate(self.needs.stages):
            stage, groups = raw["stages"][one.name], [[*gpus] for gpus in self.replicas(place)]
            stage["gpus"] = groups[0] if len(groups) == 1 else groups
            if len(groups[0]) > 1:
                stage.setdefault("engine", {})["tensor_parallel_size"] = len(groups[0])
        return raw

    def text(self, command: str) -> str:
        """Returns the file as it is written, with the command that wrote it."""
        head = f"# One server of {title(self)}, by: {command}\n"
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
    """Returns a layout in words."""
    each = "1 GPU" if layout.gpus_per_server == 1 else f"{layout.gpus_per_server} GPUs"
    servers = "1 server" if layout.servers == 1 else f"{layout.servers} servers"
    spare = f", {layout.spare} spare" if layout.spare else ""
    return f"{layout.gpus.count} x {layout.gpus.kind.name}: {servers} of {each}{spare}"


def layouts(
    needs: ModelNeeds, model: str, gpus: Gpus, changes: Sequence[Override] = ()
) -> Iterator[Layout]:
    """Yields every layout, whether or not it fits: shared, split, tensor."""
    shared, split = GRAPHS / needs.graphs.shared, GRAPHS / needs.graphs.split
    forms = ((shared, 1, [0]), (split, 1, range(1, MAX_VOICES + 1)), (shared, RANKS, [RANKS]))
    for path, ranks, all_voices in forms:
        graph = load_graph(path, model, changes)
        raw = {**yaml.safe_load(path.read_text("utf-8")), "model": model}
        for voices in all_voices:
            if voices < max(2, gpus.count) or ranks > 1:
                yield Layout(needs, graph, overridden(raw, changes), gpus, voices, ranks)
