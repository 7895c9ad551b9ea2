"""`omnistage bench stages`."""

from itertools import chain
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


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
