"""`omnistage check`."""

from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    ModelNames,
    StageChanges,
    changes_of,
)
from omnistage.server.cli.graphs import fail
from omnistage.server.cli.plan import print_plan
from omnistage.server.cli.planning.drawing import mermaid
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import offered


def check(
    file: Annotated[Path, typer.Argument(help="A graph file in YAML.")],
    as_mermaid: Annotated[
        bool,
        typer.Option(
            "--mermaid",
            envvar="OMNISTAGE_MERMAID",
            help="Print the graph as a drawing in Mermaid's language.",
        ),
    ] = False,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    served_model_name: ModelNames = None,
    deterministic: Deterministic = False,
) -> None:
    """Validate a graph file and print its plan, without loading anything."""
    if not file.is_file():
        raise fail(f"there is no graph file {file}; `omnistage plan MODEL` prints a model's graph")
    changes = changes_of(
        stage, set_any, set_default, served_model_name, deterministic=deterministic
    )
    try:
        graph = offered(load_graph(file, None, changes))
    except GraphError as error:
        raise fail(str(error)) from None
    if as_mermaid:
        typer.echo(mermaid(graph))
        return
    print_plan(graph, graph.model or str(file))
