"""Answers that depend on nothing else that runs: what `deterministic: true` of a graph means.

An engine of vLLM on a GPU is told to compute each row of a step in one way, however many rows there
are. A stage that merges requests in ways of its own computes one at a time. What cannot keep to
that is refused. docs/deterministic.md says what holds then.
"""

from collections.abc import Iterator, Mapping

from omnistage.stage_configs.kinds import Kind
from omnistage.stage_configs.rules.parallel import Problem
from omnistage.stage_configs.rules.speculation import SPECULATION
from omnistage.stage_configs.yaml_document import value_at

MAX_BATCH = "max_batch"  # how many requests a step has at most, of kinds that merge them themselves
INVARIANT = "VLLM_BATCH_INVARIANT"
# vLLM's second model runner has samplers of its own, which cut at top_p by the number of requests.
SECOND_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
VLLM_SWITCHES: Mapping[str, int] = {INVARIANT: 1, SECOND_RUNNER: 0}
# Without it cuBLAS may compute one product in two ways on two streams.
WORKSPACE: Mapping[str, str] = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

ROWS = "so a row would depend on what else runs"
DRAFTS = "how many drafts a step takes depends on what else runs"
SCALES = f"its kernels may scale a row by the largest value of all, {ROWS}"
# Arguments of vLLM's engine, of any version, that `deterministic` refuses, and why.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(SPECULATION, DRAFTS),
    "quantization": SCALES,
    "quantization_config": SCALES,
    "enable_lora": f"products of adapters are summed in blocks that depend on the batch, {ROWS}",
    "enable_expert_parallel": "that experts on several GPUs are summed in one order is not known",
    "calculate_kv_scales": "the scales would be those of the requests that came first",
}
COMPILED = ("compile_sizes", "compile_ranges_endpoints")  # of compilation_config
FUSED = ("compilation_config", "pass_config", "fuse_allreduce_rms")
BACK_ENDS = ("FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN")


def determinism_problem(
    kind: Kind, engine: Mapping[str, object], environment: Mapping[str, object]
) -> Problem | None:
    """Why a stage cannot be deterministic; None if it can."""
    if kind.is_parallel:
        return next(_vllm_problems(engine, environment), None)
    if MAX_BATCH not in kind.arguments:
        return f"a stage of this kind has no {MAX_BATCH}, {ROWS}", ("kind",)
    if engine.get(MAX_BATCH, 1) != 1:
        return "must be 1: a deterministic stage merges no requests", ("engine", MAX_BATCH)
    return None


def _vllm_problems(
    engine: Mapping[str, object], environment: Mapping[str, object]
) -> Iterator[Problem]:
    for name, needed in VLLM_SWITCHES.items():
        given = environment.get(name, needed)
        if str(given) != str(needed):
            yield f"must be {needed} in a deterministic stage, not {given}", ("environment", name)
    for name, why in REFUSED.items():
        if engine.get(name):
            yield f"is refused in a deterministic stage: {why}", ("engine", name)
    for name in COMPILED:
        if value_at(engine, ("compilation_config", name)):
            why = "code compiled for one size of a step sums in another order"
            where = ("engine", "compilation_config", name)
            yield f"is refused in a deterministic stage: {why}", where
    if value_at(engine, FUSED):
        why = "it sums over GPUs in an order that depends on the size of a step"
        yield f"is refused in a deterministic stage: {why}", ("engine", *FUSED)
    for place in (("attention_backend",), ("attention_config", "backend")):
        chosen = value_at(engine, place)
        if chosen is not None and str(chosen).upper() not in (*BACK_ENDS, "AUTO"):
            allowed = ", ".join(BACK_ENDS)
            message = f"{chosen} depends on what else runs; a deterministic stage takes {allowed}"
            yield message, ("engine", *place)


def cpu_note(name: str) -> str:
    """Returns what holds of a stage whose engine of vLLM is on a CPU."""
    return (
        f"stage {name} computes on a CPU, for which vLLM has no switch to be deterministic: "
        "products of few and of many requests round alike in float32 almost always, in bfloat16 not"
    )


def determining(kind: Kind, *, has_gpu: bool) -> tuple[dict[str, object], dict[str, object]]:
    """Returns what a deterministic stage has beside its own words: engine arguments and
    environment.
    """
    if not kind.is_parallel:
        return {MAX_BATCH: 1}, dict(WORKSPACE)
    return {}, dict(VLLM_SWITCHES) if has_gpu else {}
