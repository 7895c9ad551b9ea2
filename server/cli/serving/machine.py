"""Checks of this machine before anything loads: folders, GPUs, packages."""

import os
from pathlib import Path

from omnistage.server.cli.graphs import fail, missing_gpus, warn
from omnistage.stage_configs.checkpoint import looks_like_path
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.packages import is_installed, missing_features, missing_packages
from omnistage.stage_configs.rules.determinism import cpu_note
from omnistage.stage_configs.rules.mps import inherited_share_problem
from omnistage.stage_configs.traces import traces_url

OTLP_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
MISSING_OTLP = "it needs OpenTelemetry: pip install 'omnistage[otel]'"


def check_machine(graph: StageGraph) -> None:
    """Raises typer.Exit if a folder, a GPU or a package is missing, or MPS shares a GPU out."""
    if looks_like_path(graph.model) and not Path(graph.model).is_dir():
        raise fail(f"{graph.model}: there is no such folder")
    for sentence in (*missing_gpus(graph), *missing_packages(graph)):
        raise fail(sentence)
    for sentence in (*missing_features(graph), *map(cpu_note, graph.undetermined)):
        warn(sentence)
    is_here = not graph.placement.is_on_nodes
    uses_gpus = is_here and any(map(graph.has_gpu, graph.stages))
    if uses_gpus and (sentence := inherited_share_problem()):
        raise fail(sentence)


def make_profile_folder(folder: Path) -> None:
    """Makes the folder if it is missing; typer.Exit if stages could not write into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"--profile-folder {folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise fail(f"--profile-folder {folder}: nothing can be written there")


def checked_traces_url(endpoint: str) -> str:
    """Returns where spans are posted; typer.Exit for no address, or if nothing can post them."""
    if not is_installed(OTLP_EXPORTER):
        raise fail(f"--otlp-endpoint: {MISSING_OTLP}")
    try:
        return traces_url(endpoint)
    except ValueError as error:
        raise fail(f"--otlp-endpoint: {error}") from None
