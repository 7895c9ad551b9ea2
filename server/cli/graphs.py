"""Finds the graph that a command names, and reports errors of it."""

import typer
from rich.console import Console

from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.pick import find_graph as find_graph
from omnistage.stage_configs.pick import resolve as resolve

GPU_CURE = (
    "correct `gpus` of the stage, or take a graph for a CPU; CUDA_VISIBLE_DEVICES may hide GPUs"
)


def missing_gpus(graph: StageGraph) -> list[str]:
    """One sentence for each stage that wants a GPU which is not there; nodes have their own."""
    if graph.placement.is_on_nodes:
        return []
    count = len(visible_gpus())
    return [
        f"stage {replica.name} wants GPU {gpu}; this machine has {count}: {GPU_CURE}"
        for replica in graph.replicas.values()
        for gpu in replica.gpus
        if gpu >= count
    ]


def fail(message: str, code: int = 1) -> typer.Exit:
    """Print an error as one line."""
    _print(f"error: {message}")
    return typer.Exit(code)


def warn(message: str) -> None:
    """Print a warning as one line."""
    _print(f"warning: {message}")


def _print(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)
