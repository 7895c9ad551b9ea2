"""`omnistage plan --gpus`: whether a model fits on GPUs, and how it is laid out there."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from omnistage.bench.commands.options import command_line
from omnistage.server.cli.graphs import fail
from omnistage.server.cli.planning.gpus import read_gpus
from omnistage.server.cli.planning.layouts import Form, GpuUsage, Layout, layouts, title
from omnistage.stage_configs.family import GRAPHS
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.models.memory_needs import NoNeeds, needs_of
from omnistage.stage_configs.overrides import Override

FORMS = get_args(Form)


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """The options of `plan --gpus`. `form`: None takes the first layout that fits."""

    model: str
    gpus: str
    machine: int = 8
    form: str | None = None
    write: Path | None = None


def plan_gpus(asked: LayoutRequest, changes: Sequence[Override]) -> None:
    """Prints the layouts that fit and writes the first one's file; typer.Exit if none fits."""
    try:
        _check(asked)
        chosen, *others = fitting(asked, changes)
    except (NoNeeds, GraphError, ValueError) as error:
        raise fail(str(error)) from None
    Console().print(plan_report(chosen, others))
    if asked.write is not None:
        write(chosen, asked.write)


def _check(asked: LayoutRequest) -> None:
    if asked.form is not None and asked.form not in FORMS:
        raise ValueError(f"--layout {asked.form}: must be one of {', '.join(FORMS)}")
    if asked.write is not None and asked.write.suffix not in (".yaml", ".yml"):
        raise ValueError(f"--write {asked.write}: writes .yaml files")


def fitting(asked: LayoutRequest, changes: Sequence[Override]) -> list[Layout]:
    """Returns the layouts that fit, at least one; raises ValueError that says why none does."""
    gpus, needs = read_gpus(asked.gpus, asked.machine), needs_of(asked.model)
    every = [
        one for one in layouts(needs, asked.model, gpus, changes) if asked.form in (None, one.form)
    ]
    found = [one for one in every if not one.problem]
    if not found:
        reasons = "; ".join(
            f"with {one.gpus_per_server} to a server, {one.problem}" for one in every[:2]
        )
        small = needs.graphs.small
        if asked.form is None and small is not None and gpus.kind.memory_gb >= small.gpu_gb:
            reasons += f"; {GRAPHS / small.file} fits on one such GPU, if it computes in FP8"
        raise ValueError(f"{asked.model} does not fit on {asked.gpus}: {reasons}")
    return found


def write(layout: Layout, path: Path) -> None:
    """Writes the graph file of a server and checks it as any other."""
    try:
        path.write_text(layout.text(command_line(sys.argv, None)), "utf-8")
    except OSError as error:
        raise fail(f"--write {path}: {error.strerror}") from None
    try:
        load_graph(path)
    except GraphError as error:
        raise fail(f"the graph file was written and is refused: {error}") from None
    gpus = ",".join(map(str, range(layout.gpus_per_server)))
    Console(soft_wrap=True).print(
        f"written: {path}, the graph of each of {layout.servers} servers; a machine holds "
        f"{layout.servers_of_a_machine}, the first by: CUDA_VISIBLE_DEVICES={gpus} "
        f"omnistage serve {path}",
        markup=False,
        highlight=False,
    )


NOTE = "Memory beyond weights and caches is not known: a tenth of each GPU is left free for it."


def plan_report(chosen: Layout, others: Sequence[Layout]) -> Group:
    """Returns a layout, the memory of one of its servers, and the other layouts that fit."""
    head = Text(f"{chosen.graph.model}, {title(chosen)} ({chosen.form})")
    parts = [_memory(chosen)]
    if others:
        parts.append(_others(others))
    return Group(head, *parts, Text(NOTE))


def _memory(layout: Layout) -> Table:
    table = Table("GPU", "stages", "GB", "of", title="memory of a server")
    memory = f"{layout.gpus.kind.memory_gb:g}"
    for gpu, usage in layout.usage.items():
        total = f"{sum(one.total for one in usage):.1f}"
        table.add_row(str(gpu), "\n".join(map(_usage, usage)), total, memory)
    return table


def _usage(one: GpuUsage) -> str:
    cache = f", {one.cache:.1f} cache" if one.cache else ""
    return f"{one.stage.name}: {one.weights:.1f} weights{cache}"


def _others(layouts: Sequence[Layout]) -> Table:
    table = Table("layout", "--layout", title="other layouts that fit")
    for one in layouts:
        table.add_row(title(one), one.form)
    return table
