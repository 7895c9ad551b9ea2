"""Which graph is meant, and how a wrong one is reported."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.overrides import Override
from omnistage.stage_configs.pick import pick_graph

GPU_CURE = (
    "correct `gpus` of the stage, or take a graph for a CPU; CUDA_VISIBLE_DEVICES may hide GPUs"
)
YAML_ENDINGS = (".yaml", ".yml")


def find_graph(
    target: str, model: str | None = None, changes: Sequence[Override] = ()
) -> StageGraph:
    """The graph of a YAML file, which may name no model, of a folder or a Hugging Face name."""
    if target.endswith(YAML_ENDINGS):
        return load_graph(Path(target), model, changes)
    picked = pick_graph(target, len(visible_gpus()))
    graph = load_graph(picked.file, model or target, changes)
    return graph.model_copy(update={"note": graph.note or picked.note})


def resolve(target: str, model: str | None, changes: Sequence[Override] = ()) -> StageGraph:
    """The graph of a YAML file, a folder or a Hugging Face name, with its model."""
    graph = find_graph(target, model, changes)
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


def fail(message: str, code: int = 1) -> typer.Exit:
    """Print an error as one line."""
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", markup=False, highlight=False)
    return typer.Exit(code)
