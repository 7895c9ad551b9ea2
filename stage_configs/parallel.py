"""How many GPUs a stage uses: by its kind, its edges and its engine's parallel sizes."""

from collections.abc import Collection, Mapping
from typing import Any

from omnistage.stage_configs.kinds import Kind

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
# Of a stage with an edge: which sizes only some kinds can have there, or none, and why.
PIPELINE = (
    "the ranks of a pipeline do not all have what leaves a step of this kind or comes into it"
)
CONTEXT = "what leaves a step with an edge is not tried where a prompt is read by several GPUs"

Problem = tuple[str, tuple[str, ...]]  # what is wrong, and the key below the stage


def num_lanes(engine: Mapping[str, Any]) -> int:
    """Engines that share a stage's work, each with channels of its own: by the engine's sizes."""
    return int(engine.get("data_parallel_size") or 1)


def parallel_problem(
    kind: Kind, has_edge: bool, gpus: Collection[int], engine: Mapping[str, Any]
) -> Problem | None:
    """Why a stage cannot use its GPUs or parallel sizes; None if it can.

    Without GPUs of its own a stage takes what is there, so there is no number to compare.
    """
    sizes = {name: engine[name] for name in PARALLEL_SIZES if engine.get(name) is not None}
    if not kind.is_parallel:
        for name in sizes:
            return "a stage of this kind has no parallel sizes: it uses one GPU", ("engine", name)
        if len(gpus) > 1:
            return f"{len(gpus)} GPUs; a stage of this kind uses one", ("gpus",)
        return None
    if has_edge and sizes.get("pipeline_parallel_size", 1) > 1 and not kind.is_pipeline:
        return f"must be 1: {PIPELINE}", ("engine", "pipeline_parallel_size")
    if has_edge and sizes.get("prefill_context_parallel_size", 1) > 1:
        return f"must be 1: {CONTEXT}", ("engine", "prefill_context_parallel_size")
    wanted = 1
    for size in sizes.values():
        wanted *= size
    if gpus and len(gpus) != wanted:
        made = " x ".join(f"{name} {size}" for name, size in sizes.items())
        given = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
        message = f"{given}, but its engine uses {wanted} ({made or 'no tensor_parallel_size'})"
        return f"{message}; the two must be equal", ("gpus",)
    return None
