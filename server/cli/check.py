"""`omnistage check`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.server.cli.drawing import mermaid
from omnistage.server.cli.graphs import fail, missing_gpus
from omnistage.stage_configs.edge_payloads import named
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.packages import missing_features, missing_packages


def check(
    file: Annotated[Path, typer.Argument(help="A graph file in YAML.")],
    as_mermaid: Annotated[
        bool,
        typer.Option("--mermaid", help="Print the graph as a drawing in Mermaid's language."),
    ] = False,
) -> None:
    """Validate a graph file and print its plan, without loading anything."""
    try:
        graph = load_graph(file)
    except GraphError as error:
        raise fail(str(error)) from None
    if as_mermaid:
        typer.echo(mermaid(graph))
        return
    _print_plan(graph, file)


def _print_plan(graph: StageGraph, file: Path) -> None:
    console = Console()
    stages = Table("stage", "kind", "process", "GPUs", "outputs", title=graph.model or str(file))
    for name in graph.order:
        stage = graph.stages[name]
        made = [output for output, maker in graph.outputs.items() if maker == name]
        gpus = ", ".join(map(str, stage.gpus)) or "not set"
        stages.add_row(name, stage.kind, "its own", gpus, ", ".join(made))
    edges = Table("from", "to", "carries", "connector", "chunk", title="edges")
    for edge in graph.edges:
        sizes = ", ".join(map(str, edge.chunk_sizes)) or "whole"
        carried = named(graph.carried(edge))
        edges.add_row(edge.source, edge.target, carried, edge.connector.name, sizes)
    console.print(stages, edges)
    for sentence in (*missing_gpus(graph), *missing_packages(graph), *missing_features(graph)):
        console.print(f"warning: {sentence}", markup=False)
