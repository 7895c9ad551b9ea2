"""`omnistage warm`."""

import time
from typing import Annotated

import typer

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    OtherModel,
    StageChanges,
    Target,
    changes_of,
)
from omnistage.server.cli.graphs import fail, resolve
from omnistage.server.cli.serving.machine import check_machine
from omnistage.server.cli.serving.options import LoadFormat
from omnistage.server.runtime.processes.mps_daemon import Mps
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError


def warm(
    target: Target,
    model: OtherModel = None,
    load_format: Annotated[
        LoadFormat,
        typer.Option(help="dummy: no weights are read, or downloaded; auto: they are."),
    ] = LoadFormat.DUMMY,
    mps: Annotated[Mps, typer.Option(help="NVIDIA's MPS, as of `serve`.")] = Mps.AUTO,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    deterministic: Deterministic = False,
) -> None:
    """Compile what a graph's stages run, so that later starts find it: start them, then end them.

    What is compiled lies in the caches of vLLM, Triton and torch, and is for the same kind of GPU,
    the same versions and the same graph.
    """
    changes = changes_of(stage, set_any, set_default, deterministic=deterministic)
    try:
        graph = resolve(target, model, changes)
    except GraphError as error:
        raise fail(str(error)) from None
    check_machine(graph)
    seconds = start_and_end(graph.with_engine(load_format=load_format.value), mps)
    typer.echo(f"{graph.model}: all stages were ready after {seconds:.1f} s")


def start_and_end(graph: StageGraph, mps: Mps) -> float:
    """The seconds until all stages are ready; typer.Exit if one cannot start."""
    from omnistage.server.offline.errors import StartFailed
    from omnistage.server.offline.omni import Omni

    begun = time.monotonic()
    try:
        with Omni(graph, mps=mps.value):
            return time.monotonic() - begun
    except StartFailed as error:
        raise fail(str(error)) from None
