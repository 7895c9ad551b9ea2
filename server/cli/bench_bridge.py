"""`omnistage bench bridge`."""

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.server.cli.graphs import fail, resolve
from omnistage.stage_configs.graph_file import GraphError


def bridge(
    target: Annotated[str, typer.Argument(help="A model folder or a graph file in YAML.")],
    model: Annotated[
        str | None, typer.Option(help="The model to use with a graph file, in place of its own.")
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="How many requests run at once; may be given several times. Default: 1 and 4."
        ),
    ] = None,
) -> None:
    """Time a talker's decode step with our bridge to vLLM and without it."""
    try:
        graph = resolve(target, model)
    except GraphError as error:
        raise fail(str(error)) from None
    names = (name for name, stage in graph.stages.items() if stage.kind == "qwen3_omni.talker")
    name = next(names, None)
    if name is None:
        raise fail(f"{target} has no talker")
    talker, (edge, *_) = graph.stages[name], graph.outgoing(name)
    os.environ.update({key: str(value) for key, value in talker.environment.items()})
    from omnistage.stages.qwen3_omni.bridge_bench import measure

    def report(which: str, size: int, time_s: float) -> None:
        Console().print(f"{which} the bridge, {size} at once: {1e3 * time_s:.3f} ms")

    table = Table("batch", "without, ms", "with, ms", "ratio", title="decode step of the talker")
    sizes = batch or [1, 4]
    steps = measure(graph.model, talker.engine, edge.chunk_sizes, sizes, report)
    for size, (without, within) in steps.items():
        ratio = within / without
        table.add_row(str(size), f"{1e3 * without:.2f}", f"{1e3 * within:.2f}", f"{ratio:.2f}")
    Console().print(table)
