"""How many GPUs a stage uses: by its kind, its edges and its engine's parallel sizes."""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from omnistage.stage_configs.json_types import JsonMap
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

NO_EDGE = {
    "prefill_context_parallel_size": CONTEXT,
    "decode_context_parallel_size": CONTEXT,
}
HALVES = "what leaves a step with an edge, or comes into it, is of a whole step"
# What would put ranks or lanes of a stage on other machines, or have others start them.
# By the value that changes nothing.
ELSEWHERE: JsonMap = {
    "data_parallel_rank": None,
    "data_parallel_start_rank": None,
    "data_parallel_address": None,
    "data_parallel_external_lb": False,
    "data_parallel_hybrid_lb": False,
    "data_parallel_multi_port_external_lb": False,
    "node_rank": 0,
    "nnodes": 1,
    "enable_elastic_ep": False,
}
BACK_ENDS = ("data_parallel_backend", "distributed_executor_backend")
OTHER_BACK_ENDS = ("ray", "external_launcher")
HERE = "a stage starts all of its ranks and lanes itself, on one machine"

# How ranks of a denoiser share a call, and what does not go with several of them.
WAYS = ("ulysses", "ring", "tensor", "shard")
TILES = "vae"  # how many of these ranks share the tiles of a decoding: it asks for no more of them
ALONE = {
    "offload": "each rank keeps its denoiser on its GPU",
    "step_cache": "each rank would decide by itself what it skips",
}
IN_BLOCKS = ("tensor", "shard")
CHANGED_BLOCKS = "it changes the layers of a block and puts collectives into it"

Problem = tuple[str, tuple[str, ...]]  # what is wrong, and the key below the stage


def waiting_environment(engine: JsonMap) -> dict[str, str]:
    """Return how several ranks on a CPU wait for vLLM: by its extension; nothing for one rank.

    Otherwise they call `sched_yield` in a loop. Where ranks are as many as cores, Linux 6.18 then
    lets other processes, and its own workers, wait for minutes.
    """
    has_ranks = any((engine.get(name) or 1) > 1 for name in PARALLEL_SIZES)
    return {"VLLM_USE_SPINLOOP_EXT": "1"} if has_ranks else {}


def num_lanes(engine: JsonMap) -> int:
    """Engines that share a stage's work, each with channels of its own: by the engine's sizes."""
    return int(engine.get("data_parallel_size") or 1)


def parallel_problem(
    kind: Kind, has_edge: bool, gpus: Collection[int], engine: JsonMap
) -> Problem | None:
    """Why a stage cannot use its GPUs or parallel sizes; None if it can.

    Without GPUs of its own a stage takes what is there, so there is no number to compare.
    """
    sizes = {name: engine[name] for name in PARALLEL_SIZES if engine.get(name) is not None}
    if not kind.is_parallel:
        for name in sizes:
            return "a stage of this kind has no parallel sizes: it uses one GPU", ("engine", name)
        if kind.has_ranks:
            return ranks_problem(gpus, engine)
        if len(gpus) > 1:
            return f"{len(gpus)} GPUs; a stage of this kind uses one", ("gpus",)
        return None
    if has_edge and sizes.get("pipeline_parallel_size", 1) > 1 and not kind.is_pipeline:
        return f"must be 1: {PIPELINE}", ("engine", "pipeline_parallel_size")
    if problem := (_edge_problem(engine) if has_edge else None) or _elsewhere_problem(engine):
        return problem
    wanted = 1
    for size in sizes.values():
        wanted *= size
    if gpus and len(gpus) != wanted:
        made = " x ".join(f"{name} {size}" for name, size in sizes.items())
        given = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
        message = f"{given}, but its engine uses {wanted} ({made or 'no tensor_parallel_size'})"
        return f"{message}; the two must be equal", ("gpus",)
    return None


def _edge_problem(engine: Mapping[str, object]) -> Problem | None:
    for name, reason in NO_EDGE.items():
        if (engine.get(name) or 1) != 1:
            return f"must be 1: {reason}", ("engine", name)
    if engine.get("enable_dbo"):
        return f"must be false: {HALVES}", ("engine", "enable_dbo")
    return None


def _elsewhere_problem(engine: Mapping[str, object]) -> Problem | None:
    nothing = {**ELSEWHERE, "data_parallel_size_local": num_lanes(engine)}
    for name, value in nothing.items():
        if engine.get(name) not in (None, value):
            return HERE, ("engine", name)
    for name in BACK_ENDS:
        if engine.get(name) in OTHER_BACK_ENDS:
            return f"not {engine[name]}: {HERE}", ("engine", name)
    return None


# A stage whose denoisers have ranks


def ranks_problem(gpus: Collection[int], engine: Mapping[str, object]) -> Problem | None:
    """Why the ranks of a stage's denoisers cannot be like that; None if they can."""
    return (
        _ways_problem(engine.get("parallel"))
        or _groups_problem(engine.get("guidance_ranks"))
        or _tiles_problem(engine)
        or _alone_problem(engine)
        or _number_problem(gpus, engine)
    )


def num_ranks(engine: JsonMap) -> int:
    """The processes that share a stage's denoisers, a GPU each.

    Parts of weights are on those that share a call; where none do, each has one.
    """
    sizes: dict[str, int] = {**(engine.get("parallel") or {})}
    sizes.pop(TILES, None)
    num_parts = sizes.pop("shard", 1)
    return max(prod(sizes.values()), num_parts) * int(engine.get("guidance_ranks") or 1)


def _ways_problem(ways: object) -> Problem | None:
    place, known = ("engine", "parallel"), (*WAYS, TILES)
    if ways is None:
        return None
    if not isinstance(ways, Mapping):
        return f"must be a mapping of {', '.join(known)}, not {ways!r}", place
    for name, size in ways.items():
        if name not in known:
            return f"unknown; allowed: {', '.join(known)}", (*place, str(name))
        if not _is_size(size):
            return f"{size!r} is no size: an integer of at least 1", (*place, name)
    others = [name for name in WAYS[:2] if ways.get(name, 1) > 1]
    if ways.get("tensor", 1) > 1 and others:
        return f"not with {others[0]}: Diffusers has no plan for both", (*place, "tensor")
    return _parts_problem(ways)


def _parts_problem(ways: Mapping[str, int]) -> Problem | None:
    num_parts, num_sharing = ways.get("shard", 1), ways.get("ulysses", 1) * ways.get("ring", 1)
    place = ("engine", "parallel", "shard")
    if num_parts > 1 and ways.get("tensor", 1) > 1:
        return "not with tensor: each rank holds a part of the weights already", place
    if num_sharing > 1 and num_sharing % num_parts:
        message = f"must divide the {num_sharing} ranks of ulysses x ring, which hold the parts"
        return message, place
    return None


def _groups_problem(groups: Any) -> Problem | None:
    if groups is None or (_is_size(groups) and groups <= 2):
        return None
    return f"must be 1 or 2, not {groups!r}", ("engine", "guidance_ranks")


def _tiles_problem(engine: JsonMap) -> Problem | None:
    wanted, num = (engine.get("parallel") or {}).get(TILES, 1), num_ranks(engine)
    if wanted <= num:
        return None
    made = f"its denoiser has {num} ranks" if num > 1 else "its denoiser has no ranks"
    message = f"{wanted}, but {made} to share the tiles (guidance_ranks, {', '.join(WAYS)})"
    return message, ("engine", "parallel", TILES)


def _alone_problem(engine: JsonMap) -> Problem | None:
    if num_ranks(engine) == 1:
        return None
    for name, reason in ALONE.items():
        if engine.get(name):
            return f"not with several ranks: {reason}", ("engine", name)
    for way in IN_BLOCKS:
        for name in ("compile", "quantization"):
            if engine.get(name) and (engine.get("parallel") or {}).get(way, 1) > 1:
                return f"not with parallel.{way}: {CHANGED_BLOCKS}", ("engine", name)
    if ":" in str(engine.get("device")):
        return "not with several ranks: each has a GPU of its own", ("engine", "device")
    return None


def _number_problem(gpus: Collection[int], engine: JsonMap) -> Problem | None:
    wanted = num_ranks(engine)
    if not gpus or len(gpus) == wanted:
        return None
    sizes = {**(engine.get("parallel") or {}), "guidance_ranks": engine.get("guidance_ranks")}
    sizes.pop(TILES, None)
    if sizes.get("ulysses", 1) * sizes.get("ring", 1) > 1:
        sizes.pop("shard", None)  # it uses no more
    made = " x ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    given = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    message = f"{given}, but its engine uses {wanted} ({made or 'no parallel, no guidance_ranks'})"
    return f"{message}; the two must be equal", ("gpus",)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1
