"""`omnistage plan`."""

from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    ModelNames,
    StageChanges,
    changes_of,
)
from omnistage.server.cli.graphs import fail, find_graph, missing_gpus
from omnistage.server.cli.svg import argument_lines, chunk_sizes, gpu_names, svg
from omnistage.stage_configs.edge_payloads import named
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.packages import missing_features, missing_packages


def plan(
    target: Annotated[
        str, typer.Argument(help="A graph file in YAML, a model folder or a Hugging Face name.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The model to use with a graph file, in place of its own.")
    ] = None,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    served_model_name: ModelNames = None,
    as_svg: Annotated[
        bool,
        typer.Option("--svg", envvar="OMNISTAGE_SVG", help="Print a drawing of the graph in SVG."),
    ] = False,
) -> None:
    """Print the graph that would serve a model: stages, GPUs, arguments, edges, outputs."""
    changes = changes_of(stage, set_any, set_default, served_model_name)
    try:
        graph = find_graph(target, model, changes)
    except GraphError as error:
        raise fail(str(error)) from None
    if as_svg:
        typer.echo(svg(graph))
        return
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
