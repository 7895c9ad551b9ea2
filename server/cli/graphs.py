"""Which graph is meant, and how a wrong one is reported."""

from pathlib import Path

import typer
from rich.console import Console

from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import pick_graph

GPU_CURE = (
    "correct `gpus` of the stage, or take a graph for a CPU; CUDA_VISIBLE_DEVICES may hide GPUs"
)
YAML_ENDINGS = (".yaml", ".yml")


def resolve(target: str, model: str | None) -> StageGraph:
    """The graph of a YAML file, a folder or a Hugging Face name, with its model."""
    if target.endswith(YAML_ENDINGS):
        graph = load_graph(Path(target), model)
    else:
        picked = pick_graph(target, len(visible_gpus()))
        graph = load_graph(picked.file, model or target).model_copy(update={"note": picked.note})
    if not graph.model:
        raise GraphError(f"{target}:1: model: the key is missing; give one with --model")
    return graph


def missing_gpus(graph: StageGraph) -> list[str]:
    """One sentence for each stage that wants a GPU which is not there."""
    count = len(visible_gpus())
    return [
        f"stage {stage.name} wants GPU {gpu}; this machine has {count}: {GPU_CURE}"
        for stage in graph.stages.values()
        for gpu in stage.gpus
        if gpu >= count
    ]


def fail(message: str) -> typer.Exit:
    """Print an error as one line."""
    _print(f"error: {message}")
    return typer.Exit(1)


def warn(message: str) -> None:
    """Print a warning as one line."""
    _print(f"warning: {message}")


def _print(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)
