"""`omnistage plan`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    ModelNames,
    OtherModel,
    StageChanges,
    Target,
    changes_of,
)
from omnistage.server.cli.graphs import fail, find_graph, missing_gpus
from omnistage.server.cli.planning.command import LayoutRequest, plan_gpus
from omnistage.server.cli.planning.stage_texts import argument_lines, chunk_sizes, gpu_names
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.packages import missing_features, missing_packages
from omnistage.stage_configs.rules.edge_payloads import named


def plan(
    target: Target,
    model: OtherModel = None,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    served_model_name: ModelNames = None,
    deterministic: Deterministic = False,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="NxKIND",
            help="Lay the model out on these GPUs, 8xH200 or 24x80GB: whether it fits, and where.",
        ),
    ] = None,
    machine: Annotated[int, typer.Option(min=1, help="How many GPUs a machine has.")] = 8,
    layout: Annotated[
        str | None,
        typer.Option(
            help="shared: all stages on one GPU; split; tensor. Default: the first that fits."
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="The graph file of one server to write, .yaml.")
    ] = None,
) -> None:
    """Print the graph that would serve a model: stages, GPUs, arguments, edges, outputs.

    With --gpus: whether it fits on these, and how it would be laid out.
    """
    changes = changes_of(
        stage, set_any, set_default, served_model_name, deterministic=deterministic
    )
    if gpus is not None:
        plan_gpus(LayoutRequest(model or target, gpus, machine, layout, write), changes)
        return
    if layout is not None or write is not None:
        raise fail("--layout and --write have no effect without --gpus")
    try:
        graph = find_graph(target, model, changes)
    except GraphError as error:
        raise fail(str(error)) from None
    print_plan(graph, graph.model or target)


def print_plan(graph: StageGraph, title: str) -> None:
    """Print the tables of a graph, and a warning for each GPU and package that is not there."""
    console = Console()
    console.print(plan_tables(graph, title))
    for sentence in (*missing_gpus(graph), *missing_packages(graph), *missing_features(graph)):
        console.print(f"warning: {sentence}", markup=False)


def plan_tables(graph: StageGraph, title: str) -> Group:
    """The stages and the edges of a graph."""
    stages = Table("stage", "kind", "GPUs", "arguments", "outputs", title=Text(title))
    for column in stages.columns:
        column.overflow = "fold"
    for name in graph.order:
        stage = graph.stages[name]
        made = [output for output, maker in graph.outputs.items() if maker == name]
        arguments = Text("\n".join(argument_lines(stage)))
        stages.add_row(name, stage.kind, gpu_names(stage), arguments, ", ".join(made))
    edges = Table("from", "to", "carries", "connector", "chunks", title="edges")
    for edge in graph.edges:
        carried = named(graph.carried(edge))
        edges.add_row(edge.source, edge.target, carried, edge.connector.name, chunk_sizes(edge))
    return Group(stages, edges)
