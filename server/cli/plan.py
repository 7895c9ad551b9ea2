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
from omnistage.server.cli.planning.command import BEST, Asked, plan_gpus
from omnistage.server.cli.planning.forecast import Demand
from omnistage.server.cli.stage_texts import argument_lines, chunk_sizes, gpu_names
from omnistage.stage_configs.edge_payloads import named
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.packages import missing_features, missing_packages


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
            help="Lay the model out on these GPUs, 8xH200 or 24x80GB, and forecast what they do.",
        ),
    ] = None,
    machine: Annotated[int, typer.Option(min=1, help="How many GPUs a machine has.")] = 8,
    sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Voice sessions at once. Default: as many as the GPUs carry."),
    ] = None,
    speech: Annotated[
        float, typer.Option(help="The share of a session's time that speech of the model fills.")
    ] = 0.4,
    load: Annotated[
        float, typer.Option(help="The greatest part of what GPUs could do that is planned for.")
    ] = 0.7,
    ttfp_ms: Annotated[
        float, typer.Option(help="The time to the first packet that 99 of 100 answers keep.")
    ] = 500.0,
    stall_ms: Annotated[
        float, typer.Option(help="The longest stall of a player that 99 of 100 answers keep.")
    ] = 200.0,
    price: Annotated[
        float | None, typer.Option(help="Dollars a GPU and hour. Default: by the GPU's kind.")
    ] = None,
    history: Annotated[
        int, typer.Option(min=0, help="Tokens of a conversation that every turn has before it.")
    ] = 0,
    network_gbit: Annotated[
        float, typer.Option(help="Gbit a second that a machine can send.")
    ] = 10.0,
    layout: Annotated[
        str, typer.Option(help="cells: all stages on each GPU; split; tensor; or best of them.")
    ] = BEST,
    write: Annotated[
        Path | None, typer.Option(help="The graph file of one cell to write, .yaml.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Measured figures in YAML in place of those that come along."),
    ] = None,
) -> None:
    """Print the graph that would serve a model: stages, GPUs, arguments, edges, outputs.

    With --gpus: how it would be laid out on these, and what they would do.
    """
    changes = changes_of(
        stage, set_any, set_default, served_model_name, deterministic=deterministic
    )
    if gpus is not None:
        demand = Demand(speech, load, ttfp_ms, stall_ms, history, price, network_gbit)
        asked = Asked(model or target, gpus, sessions, demand, machine, layout, write, figures)
        plan_gpus(asked, changes)
        return
    if sessions is not None or write is not None:
        raise fail("--sessions and --write have no effect without --gpus")
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
