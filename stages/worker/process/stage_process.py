"""Runs the process of one stage: its environment, its logs, and a stage worker."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from omnistage.connectors.segments import ENDING, PLACE, remove_segments
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.gpus import gpu_environment, used_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.rules.parallel import waiting_environment
from omnistage.stages.messages.loading import begin_loading
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs
from omnistage.stages.worker.process.compiles import begin_counting
from omnistage.stages.worker.stage_worker import StageWorker


def run_stage(name: str, directory: Path) -> None:
    """Run one stage of the graph in a run directory until it is told to stop."""
    begin_loading(directory, name)
    begin_counting(directory, name)
    bound_logs()
    logging.basicConfig(level=os.environ.get(LOG_LEVEL, "INFO"), format="%(levelname)s %(message)s")
    graph = StageGraph.model_validate_json((directory / "graph.json").read_bytes())
    os.environ.update(stage_environment(graph.spec_of(name), graph.replicas[name].gpus))
    segments = directory / f"{name}{ENDING}"
    remove_segments(segments)  # the generation before us was killed
    os.environ[PLACE] = str(segments)
    asyncio.run(_run(graph, name, directory))


def stage_environment(spec: StageSpec, gpus: Sequence[int]) -> dict[str, str]:
    """Returns what the process of a stage's replica with these GPUs adds to its environment.

    Triton's cache is named even where it is the default: torch.compile moves an unnamed one at the
    moment of its first kernel, which a start that finds compiled code reaches at another time than
    one that does not. Kernels of the first would be compiled again by the second, for 40 s.
    """
    triton = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    own = {key: str(value) for key, value in spec.environment.items()}
    waiting = {} if used_gpus(tuple(gpus)) else waiting_environment(spec.engine)
    return {"TRITON_CACHE_DIR": triton, **gpu_environment(gpus), **waiting, **own}


async def _run(graph: StageGraph, name: str, directory: Path) -> None:
    await StageWorker(graph, name, directory).run()
