"""A stage in words, for tables and drawings of a graph."""

import json

from omnistage.stage_configs.declared.edge import Edge
from omnistage.stage_configs.declared.stage import StageSpec

SECRET = frozenset({"hf_token"})  # arguments that are not shown


def argument_lines(stage: StageSpec) -> list[str]:
    """Returns what the graph says of a stage beside its kind and its GPUs, a line each."""
    said = {name: "…" if name in SECRET else value for name, value in stage.engine.items()}
    if counted := replica_count(stage):
        said = {"replicas": counted.removesuffix(" replicas"), **said}
    said |= {f"options.{name}": value for name, value in stage.options.items()}
    said |= {f"default {name}": one for name, one in stage.default_sampling_params.given.items()}
    return [f"{name}: {_shown(value)}" for name, value in said.items()]


def gpu_names(stage: StageSpec) -> str:
    """The GPUs of a stage, in words; those of each replica where they differ."""
    if stage.num_gpus:
        return f"{stage.num_gpus:g} of a node"
    lists = dict.fromkeys(replica.gpus for replica in stage.all_replicas)
    return " | ".join(", ".join(map(str, gpus)) for gpus in lists) or "not set"


def replica_count(stage: StageSpec) -> str:
    """Return the number of replicas at the start and at most; empty for a stage that has one."""
    if stage.most_replicas == 1:
        return ""
    most = f" of at most {stage.most_replicas}"
    return f"{stage.num_replicas}{most if stage.max_replicas else ''} replicas"


def chunk_sizes(edge: Edge) -> str:
    """Return the sizes of the chunks that go along an edge; the last size repeats."""
    sizes = edge.chunk_sizes
    while sizes[1:] and sizes[-1] == sizes[-2]:
        sizes.pop()
    return " ".join([*map(str, sizes), "…"]) if sizes else "whole"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
