"""`omnistage cells`: N servers of one graph on one machine, each on GPUs of its own."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from omnistage.server.cells.haproxy import Front, configuration, find_haproxy
from omnistage.server.cells.layout import (
    Cell,
    NoRoom,
    gpu_share,
    gpus_of_cells,
    reserved_ports,
)
from omnistage.server.cli.changes import changes_of
from omnistage.server.cli.graphs import fail, resolve
from omnistage.server.cli.guard import cannot_listen
from omnistage.server.cli.serving.machine import check_machine
from omnistage.server.cli.serving.options import ServeOptions
from omnistage.server.cli.serving.with_options import NAMES, with_serve_options
from omnistage.stage_configs.gpus import VISIBLE, visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError

logger = logging.getLogger(__name__)

MAX_CELLS = 64
NOT_FOR_CELLS = ("target", "host", "port", "dry_run")  # what else `serve` is given, cells are too
NO_NODES = (
    "placement ray: cells are servers of one machine, each on GPUs of its own; run `omnistage "
    "serve` for one server whose stages are on nodes"
)
NO_TLS = "cells speak HTTP with their balancer; put a proxy with TLS before it"
REFUSED = {
    "ssl_certfile": f"--ssl-certfile: {NO_TLS}",
    "ssl_keyfile": f"--ssl-keyfile: {NO_TLS}",
    "profile_folder": "--profile-folder: one server alone writes there; run `omnistage serve`",
    "voices": "--voices: one server alone reads such a folder; run `omnistage serve` for it",
}
CONFIGURATION = "haproxy.cfg"
NO_HAPROXY = (
    "haproxy is not installed, so nothing listens on %s:%d: apt-get install haproxy and start "
    "again, or let another balancer ask the cells, those whose GET /ready is a 200"
)


@with_serve_options
def cells(
    context: typer.Context,
    options: ServeOptions,
    num_cells: Annotated[
        int, typer.Argument(metavar="N", min=1, max=MAX_CELLS, help="How many servers.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The file into which HAProxy's configuration is written. Without it, it is gone "
            "at the end.",
        ),
    ] = None,
) -> None:
    """Serve a graph N times, each on GPUs of its own, with HAProxy in front, until Ctrl-C."""
    for name, why in REFUSED.items():
        if getattr(options, name) is not None:
            raise fail(why)
    try:
        graph, gpus = graph_of_a_cell(num_cells, options)
    except (GraphError, NoRoom) as error:
        raise fail(str(error)) from None
    with ports(options.host, options.port, num_cells) as (port, cell_ports):
        front = front_of(graph, port, options)
        placed = [Cell(*one) for one in zip(range(num_cells), cell_ports, gpus, strict=True)]
        if options.dry_run:
            show(graph, front, placed)
            return
        typed = typed_options(context, options)
        code = serve_cells(options.target, typed, front, placed, config, options)
    raise typer.Exit(code)


def graph_of_a_cell(
    num_cells: int, options: ServeOptions
) -> tuple[StageGraph, list[tuple[str, ...]]]:
    """The graph that each cell serves, and the GPUs of each; GraphError, NoRoom, typer.Exit.

    It is chosen by the GPUs that one cell may have, as the cell will choose it itself.
    """
    changes = changes_of(
        options.stage,
        options.set_any,
        options.set_default,
        options.served_model_name,
        options.voice_alias,
        deterministic=options.deterministic,
    )
    gpus = visible_gpus()
    with seeing(gpu_share(num_cells, gpus)):
        graph = resolve(options.target, options.model, changes)
        if graph.placement.is_on_nodes:
            raise fail(NO_NODES)
        taken = gpus_of_cells(graph, num_cells, gpus)
        check_machine(graph)
    return graph, taken


@contextlib.contextmanager
def seeing(gpus: Sequence[str]) -> Iterator[None]:
    """Let this process see these GPUs alone."""
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(gpus)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before


@contextlib.contextmanager
def ports(host: str, port: int, num_cells: int) -> Iterator[tuple[int, list[int]]]:
    """The balancer's port and the cells'; typer.Exit if one is not to be had."""
    with contextlib.ExitStack() as held:
        try:
            taken = held.enter_context(reserved_ports(host, port, num_cells))
        except NoRoom as error:
            raise fail(f"--port {port}: {error}") from None
        except OSError as error:
            raise fail(cannot_listen(error.filename, error)) from None
        yield taken


def front_of(graph: StageGraph, port: int, options: ServeOptions) -> Front:
    """Where clients ask."""
    from omnistage.server.cli.serving.gateway_options import root_path_of

    root_path = root_path_of(options.root_path)
    return Front(options.host, port, graph.deadlines.drain_s, root_path)


def typed_options(context: typer.Context, options: ServeOptions) -> list[str]:
    """What was typed for the cells, to be typed again for each of them.

    What came from the environment comes from there again, keys above all: nobody sees them there.
    """
    typed: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        is_for_cells = option.name in NAMES and option.name not in NOT_FOR_CELLS
        if is_for_cells and source is not None and source.name == "COMMANDLINE":
            typed += _typed(max(option.opts, key=len), getattr(options, str(option.name)))
    return typed


def _typed(flag: str, value: Any) -> list[str]:
    if value is True:
        return [flag]
    values = value if isinstance(value, list) else [value]
    return [f"{flag}={one.value if isinstance(one, Enum) else one}" for one in values]


def show(graph: StageGraph, front: Front, placed: Sequence[Cell]) -> None:
    """Print what would run, and the balancer's configuration."""
    table = Table("cell", "address", "GPUs", title=f"{len(placed)} x {graph.model}")
    for cell in placed:
        table.add_row(cell.name, cell.url, ", ".join(cell.gpus) or "none")
    Console().print(table)
    typer.echo(configuration(front, placed))


def serve_cells(
    target: str,
    typed: Sequence[str],
    front: Front,
    placed: Sequence[Cell],
    config: Path | None,
    options: ServeOptions,
) -> int:
    """Run all of it until told to stop; the exit code."""
    from omnistage.connectors.sweep import make_run_directory
    from omnistage.server.cells.run import balancer_command, run_cells, serve_command
    from omnistage.server.telemetry.logs import configure_logging

    configure_logging(Console(stderr=True), options.log_format, options.log_level)
    run = make_run_directory()
    try:
        file = config or run.path / CONFIGURATION
        file.write_text(configuration(front, placed), "utf-8")
        haproxy = find_haproxy()
        tell(front, placed, haproxy)
        balancer = None if haproxy is None else balancer_command(haproxy, file)
        return run_cells(placed, partial(serve_command, target, typed), front, balancer)
    finally:
        run.remove()


def tell(front: Front, placed: Sequence[Cell], haproxy: str | None) -> None:
    """Say where the cells and their balancer are."""
    for cell in placed:
        logger.info("%s: %s, GPUs: %s", cell.name, cell.url, ", ".join(cell.gpus) or "none")
    if haproxy is None:
        logger.warning(NO_HAPROXY, front.host, front.port)
    else:
        logger.info("%s balances them at http://%s:%d", haproxy, front.host, front.port)
