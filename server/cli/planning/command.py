"""`omnistage plan --gpus`: from what was typed to what is printed and written."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console

from omnistage.bench.options import command_line
from omnistage.server.cli.graphs import fail
from omnistage.server.cli.planning.forecast import Demand, Forecast
from omnistage.server.cli.planning.gpus import read_gpus
from omnistage.server.cli.planning.layouts import Form, Layout, layouts, title
from omnistage.server.cli.planning.report import plan_report
from omnistage.stage_configs.figures import Figures, NoFigures, figures_of, read_figures
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.overrides import Override

BEST = "best"
FORMS = (BEST, *get_args(Form))


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed. `sessions`: None asks how many there could be."""

    model: str
    gpus: str
    sessions: int | None
    demand: Demand
    machine: int = 8
    form: str = BEST
    write: Path | None = None
    figures: Path | None = None


def plan_gpus(asked: Asked, changes: Sequence[Override]) -> None:
    """Print the best layout and write its graph file; typer.Exit if it is not enough."""
    try:
        _check(asked)
        found = forecasts(asked, changes)
    except (NoFigures, GraphError, ValueError) as error:
        raise fail(str(error)) from None
    chosen, *others = sorted(found, key=lambda one: one.most_sessions, reverse=True)
    sessions = chosen.most_sessions if asked.sessions is None else asked.sessions
    if not chosen.most_sessions:
        raise fail("these GPUs carry no session within that load, TTFP and stall")
    Console().print(plan_report(chosen, sessions, others))
    if asked.write is not None:
        write(chosen.layout, asked.write)
    if sessions > chosen.most_sessions:
        needed = chosen.cells_for(sessions) * chosen.layout.gpus_per_cell
        raise fail(
            f"{sessions} sessions need {needed} GPUs; "
            f"{chosen.layout.gpus.count} carry {chosen.most_sessions}"
        )


def _check(asked: Asked) -> None:
    """Refuse values that mean nothing; ValueError names the option."""
    demand = asked.demand
    for option, share in (("--speech", demand.speech), ("--load", demand.load)):
        if not 0 < share <= 1:
            raise ValueError(f"{option} {share:g}: must be more than 0 and at most 1")
    for option, value in (
        ("--price", demand.price),
        ("--network-gbit", demand.network_gbit),
        ("--ttfp-ms", demand.ttfp_ms),
        ("--stall-ms", demand.stall_ms),
    ):
        if value is not None and not (0 < value < math.inf):
            raise ValueError(f"{option} {value:g}: must be more than 0")
    if asked.form not in FORMS:
        raise ValueError(f"--layout {asked.form}: must be one of {', '.join(FORMS)}")
    if asked.write is not None and asked.write.suffix not in (".yaml", ".yml"):
        raise ValueError(f"--write {asked.write}: writes .yaml files")


def forecasts(asked: Asked, changes: Sequence[Override]) -> list[Forecast]:
    """Of every layout that fits; ValueError says why none does."""
    figures = _figures(asked)
    every = [
        one
        for one in layouts(figures, asked.model, read_gpus(asked.gpus, asked.machine), changes)
        if asked.form in (BEST, one.form)
    ]
    fitting = [one for one in every if not one.problem]
    if not fitting:
        reasons = "; ".join(f"{title(one)}: {one.problem}" for one in every[:2])
        raise ValueError(f"{asked.model} does not fit on {asked.gpus}: {reasons}")
    return [Forecast(one, asked.demand) for one in fitting]


def _figures(asked: Asked) -> Figures:
    return figures_of(asked.model) if asked.figures is None else read_figures(asked.figures)


def write(layout: Layout, path: Path) -> None:
    """The graph file of a cell, which is checked as any other."""
    try:
        path.write_text(layout.text(command_line(sys.argv, None)), "utf-8")
    except OSError as error:
        raise fail(f"--write {path}: {error.strerror}") from None
    try:
        load_graph(path)
    except GraphError as error:
        raise fail(f"the graph file was written and is refused: {error}") from None
    Console(soft_wrap=True).print(
        f"written: {path}, the graph of each of {layout.cells} servers; on each machine: "
        f"omnistage cells {layout.cells_of_a_machine} {path}",
        markup=False,
        highlight=False,
    )
