"""An engine in a process of a stage of this one: how often it preempts, and a stop of it."""

from contextlib import AbstractContextManager
from typing import Any

from support.faults.stopping import stopped


def num_preempted(stage: Any) -> float:
    """Return how often a request had to give up its blocks."""
    samples = [one for metric in stage.metrics.collect() for one in metric.samples]
    counts = (one.value for one in samples if one.name == "vllm:num_preemptions_total")
    return float(sum(counts))


def num_unfinished(stage: Any, name: str = "") -> int:
    """Return how many requests whose names begin so the engine has, or will have when it goes on.

    Others may end while it is stopped: what it has made before is still read.
    """
    return sum(one.startswith(name) for one in stage._engine.output_processor.request_states)


def stopped_engine(stage: Any) -> AbstractContextManager[None]:
    """Its engine makes nothing meanwhile."""
    (engine,) = stage._engine.engine_core.resources.engine_manager.processes
    return stopped(engine.pid)
