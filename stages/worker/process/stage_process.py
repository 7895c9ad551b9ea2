"""Runs the process of one stage: its environment, its logs, and a stage worker."""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

from omnistage.connectors.segments import ENDING, PLACE, remove_segments
from omnistage.stage_configs.environment import stage_environment
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import begin_loading
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs
from omnistage.stages.worker.process.compiles import begin_counting
from omnistage.stages.worker.stage_worker import StageWorker


def import_kinds(names: Sequence[str], directory: Path) -> None:
    """Import what the classes of these stages need, with the environment that all of them have.

    What fails is left to the stages, which report it.
    """
    graph = _graph(directory)
    spec = graph.spec_of(names[0])
    os.environ.update(stage_environment(spec, graph.replicas[names[0]].gpus))
    for name in names:
        with suppress(Exception):
            resolve_name(KINDS[graph.spec_of(name).kind].path)


def run_stage(name: str, directory: Path) -> None:
    """Run one stage of the graph in a run directory until it is told to stop."""
    begin_loading(directory, name)
    begin_counting(directory, name)
    bound_logs()
    logging.basicConfig(level=os.environ.get(LOG_LEVEL, "INFO"), format="%(levelname)s %(message)s")
    graph = _graph(directory)
    os.environ.update(stage_environment(graph.spec_of(name), graph.replicas[name].gpus))
    segments = directory / f"{name}{ENDING}"
    remove_segments(segments)  # the generation before us was killed
    os.environ[PLACE] = str(segments)
    asyncio.run(_run(graph, name, directory))


def _graph(directory: Path) -> StageGraph:
    return StageGraph.model_validate_json((directory / "graph.json").read_bytes())


async def _run(graph: StageGraph, name: str, directory: Path) -> None:
    await StageWorker(graph, name, directory).run()
