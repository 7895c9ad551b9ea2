"""`omnistage bench bridge` and `omnistage bench stages`: their options, and what they print."""

import os
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.stage_configs.pick import resolve


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
    graph = resolve(target, model)
    names = (name for name, stage in graph.stages.items() if stage.kind == "qwen3_omni.talker")
    name = next(names, None)
    if name is None:
        raise ValueError(f"{target} has no talker")
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


def stages(
    target: Annotated[str, typer.Argument(help="A model folder. Its weights are not read.")],
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="How many rows run at once; may be given several times. Default: 1, 8 and 64."
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            help="How many codec frames a chunk has; may be given several times. "
            "Default: 1, 2, 8 and 25."
        ),
    ] = None,
) -> None:
    """Time the code predictor and code2wav alone, over the time that reading their bytes takes."""
    from omnistage.stages.qwen3_omni.stage_bench import StageBench

    measured = StageBench(target)
    table = Table(
        *("part", "batch", "work", "ms", "floor ms", "of the floor"),
        title=f"floor: weights at {measured.bytes_per_s / 1e12:.2f} TB/s, a large copy",
    )
    batches = batch or [1, 8, 64]
    parts = chain(
        measured.code_predictor(batches), measured.code2wav(batches, length or [1, 2, 8, 25])
    )
    for part in parts:
        times = f"{1e3 * part.time_s:.3f}", f"{1e3 * part.floor_s:.3f}"
        ratio = f"{part.time_s / part.floor_s:.1f}"
        table.add_row(part.name, str(part.batch), part.work, *times, ratio)
    Console().print(table)
