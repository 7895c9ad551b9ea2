"""Making an engine: stock AsyncLLM, with our connector and scheduler chosen by configuration."""

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import vllm.envs
from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.usage.usage_lib import UsageContext

from omnistage.connectors.large_blocks import set_large_blocks_apart
from omnistage.stage_configs.rules.determinism import SECOND_RUNNER
from omnistage.stage_configs.rules.own_arguments import (
    BRIDGE,
    LATE_INPUTS,
    MODEL,
    MODEL_CLASS,
    Owned,
    refuse_own,
)
from omnistage.stage_configs.rules.speculation import drafting
from omnistage.stages.messages.loading import Phase, tell_loading
from omnistage.stages.vllm.answers.truncation import PATH as TRUNCATION
from omnistage.stages.vllm.compat import AsyncLLM, EngineArguments, PrometheusStatLogger
from omnistage.stages.vllm.grammars.grammars import GUIDANCE
from omnistage.stages.vllm.kv.kv_checks import refuse_unsendable_kv
from omnistage.stages.vllm.loading.dummy_loader import LOAD_FORMAT as DUMMY
from omnistage.stages.vllm.loading.fit import WHOLE, ModelPart, check_fit
from omnistage.stages.vllm.loading.loading import load_format_of
from omnistage.stages.vllm.rows.row_cache import asked_gib
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.workers.worker_extension import extended_by
from omnistage.stages.worker.extension import ARGUMENT as EXTENSION
from omnistage.stages.worker.stage import StagePorts

logger = logging.getLogger(__name__)

Engine = TypeVar("Engine", bound=AsyncLLM)

SCHEDULER = "omnistage.stages.vllm.bridge.gate.GatedScheduler"
ASYNC_SCHEDULER = "omnistage.stages.vllm.bridge.gate.GatedAsyncScheduler"
ROW_SCHEDULER = "omnistage.stages.vllm.rows.row_reading.RowReadingScheduler"
ASYNC_ROW_SCHEDULER = "omnistage.stages.vllm.rows.row_reading.RowReadingAsyncScheduler"
FUSES_ROTATION = (0, 27)  # the first version of vLLM that does
ROTATION = "rotary_embedding"  # vLLM's name of the operation
ASYNC = "async_scheduling"  # an engine argument
CONNECTOR = {
    "kv_connector": "OmnistageConnector",
    "kv_connector_module_path": "omnistage.stages.vllm.bridge.connector",
}
KV_CONNECTOR = {
    "kv_connector": "KvConnector",
    "kv_connector_module_path": "omnistage.stages.vllm.kv.connector",
}
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
CPU_WORKER = "omnistage.stages.vllm.workers.cpu_worker.SeededCPUWorker"


def make_engine(
    engine_class: type[Engine],
    model: str,
    options: Mapping[str, Any],
    bridge: BridgeConfig | None,
    hf_overrides: Callable[[Any], Any] | None = None,
    *,
    stage: str = "engine",
    part: ModelPart = WHOLE,
) -> Engine:
    """Start an engine; `options` are vLLM's engine arguments, ours come on top.

    It computes in a process of its own: in this one media are prepared, whose memory goes back.

    `load_format: dummy` means our dummy weights. `part` is what it loads of the model. Raises
    ValueError for an engine argument that vLLM does not know, and DoesNotFit.
    """
    set_large_blocks_apart()
    known = set(EngineArguments.__dataclass_fields__)
    unknown = sorted(set(options) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"vLLM {vllm.__version__} has no engine argument {', '.join(unknown)}{meant}"
        )
    refuse_own(options, own_arguments(bridge, hf_overrides))
    arguments: dict[str, Any] = {**options, "model": model}
    arguments["structured_outputs_config"] = _structured_outputs(options)
    asked = arguments.get("load_format", "auto")
    arguments["load_format"] = DUMMY if asked == "dummy" else load_format_of(asked, model)
    arguments[EXTENSION] = extended_by(options.get(EXTENSION))
    if current_platform.is_cpu():
        arguments.setdefault("worker_cls", CPU_WORKER)
        _add_spare_place(arguments)
    if vllm.envs.VLLM_BATCH_INVARIANT and options.get("runner") != "pooling":
        arguments |= _invariant_sampling(options)
    if hf_overrides is not None:
        arguments["hf_overrides"] = hf_overrides
    if bridge is not None:
        refuse_drafts(options, bridge)
        arguments["kv_transfer_config"] = {
            **(KV_CONNECTOR if bridge.sends_kv else CONNECTOR),
            "kv_role": "kv_both",
            "kv_connector_extra_config": bridge.to_config(),
        }
    config = configured(arguments, bridge)
    if bridge is not None and bridge.sends_kv:
        refuse_unsendable_kv(config)
    if bridge is not None and bridge.row_cache_gib:
        is_async = config.scheduler_config.async_scheduling
        config.scheduler_config.scheduler_cls = ASYNC_ROW_SCHEDULER if is_async else ROW_SCHEDULER
    refuse_quantized_invariance(config)
    refuse_online_quantization(config)
    refuse_lora_of_experts(config)
    refuse_expert_parallel_lanes(config)
    check_fit(stage, config, options, part)
    # What is switched off here are the loggers that vLLM adds to those that it is given.
    loggers = [] if options.get("disable_log_stats") else [PrometheusStatLogger]
    engine = engine_class.from_vllm_config(
        config,
        stat_loggers=loggers,
        disable_log_stats=True,
        enable_log_requests=bool(options.get("enable_log_requests")),
    )
    tell_loading(Phase.WARMING_UP)
    return engine


def own_arguments(bridge: BridgeConfig | None, hf_overrides: object) -> Owned:
    """The arguments that such an engine sets itself."""
    return {
        **MODEL,
        **(BRIDGE if bridge is not None else {}),
        **(LATE_INPUTS if bridge is not None and bridge.late_inputs else {}),
        **(MODEL_CLASS if hf_overrides is not None else {}),
    }


def configured(arguments: Mapping[str, Any], bridge: BridgeConfig | None) -> VllmConfig:
    """vLLM's configuration; what depends on it is told by making it again.

    How an engine's processes begin stays as the environment says it, where OpenMP has one thread
    and so may be forked: on a CPU vLLM sets `spawn` whatever was asked for, and a new interpreter's
    imports are half of a tiny model's start.
    """
    asked_method = os.environ.get(START_METHOD)

    def made(**more: Any) -> VllmConfig:
        given = EngineArguments(**{**arguments, **more})
        return given.create_engine_config(UsageContext.ENGINE_CONTEXT)

    more = {"scheduler_cls": SCHEDULER} if bridge is not None and bridge.late_inputs else {}
    config = made(**more)
    again: dict[str, Any] = {}
    if more and config.scheduler_config.async_scheduling:
        again["scheduler_cls"] = ASYNC_SCHEDULER
    asked = arguments.get("compilation_config")
    if config.model_config.uses_mrope and fuses_rotation() and says_nothing_of_rotation(asked):
        again["compilation_config"] = with_rotation_apart(asked)
    if again:
        config = made(**{**more, **again})
    if asked_method is not None and os.environ.get("OMP_NUM_THREADS") == "1":
        os.environ[START_METHOD] = asked_method
    return config


def fuses_rotation() -> bool:
    """Returns whether vLLM compiles M-RoPE and the norms of queries and keys into one kernel.

    Such a kernel rounds in other places, and Qwen3-Omni of vLLM 0.27 spoke other words by it:
    https://github.com/vllm-project/vllm-omni/issues/6067.
    """
    return current_platform.is_cuda() and vllm.__version_tuple__[:2] >= FUSES_ROTATION


def says_nothing_of_rotation(compilation: object) -> bool:
    """Returns whether the `compilation_config` of a graph file leaves it to us."""
    if compilation is not None and not isinstance(compilation, Mapping):
        return False
    named = {str(op).lstrip("+-") for op in (compilation or {}).get("custom_ops") or ()}
    return not named & {"all", "none", ROTATION}


def with_rotation_apart(compilation: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same with M-RoPE as a kernel of its own, as without compiled code."""
    given = dict(compilation or {})
    return {**given, "custom_ops": [*(given.get("custom_ops") or ()), f"+{ROTATION}"]}


def _structured_outputs(options: Mapping[str, Any]) -> StructuredOutputsConfig:
    """llguidance unless another is chosen: it computes what a grammar allows token by token.

    xgrammar computes all of it before the first one, and fails at counts above 128 in a pattern.
    """
    chosen = {"backend": GUIDANCE, **(options.get("structured_outputs_config") or {})}
    return StructuredOutputsConfig(**chosen)


def _invariant_sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Our processor for top-k and top-p, which vLLM takes in its first runner and without drafts.

    The engine's process reads the environment of this one.
    """
    if (name := drafting(options)) is not None:
        raise ValueError(f"{name}: not with VLLM_BATCH_INVARIANT (deterministic: true sets it)")
    os.environ[SECOND_RUNNER] = "0"
    return {"logits_processors": [*(options.get("logits_processors") or ()), TRUNCATION]}


def _add_spare_place(arguments: dict[str, Any]) -> None:
    """One place for adapters that stays empty (adapters.py says why)."""
    if arguments.get("enable_lora"):
        arguments["max_loras"] = arguments.get("max_loras", 1) + 1
        if arguments.get("max_cpu_loras") is not None:
            arguments["max_cpu_loras"] = max(arguments["max_cpu_loras"], arguments["max_loras"])


def refuse_quantized_invariance(config: VllmConfig) -> None:
    """Refuse VLLM_BATCH_INVARIANT for a checkpoint with quantized weights.

    Many of its kernels scale a row by the largest value of all rows of a step.
    """
    quantization = config.model_config.quantization
    if vllm.envs.VLLM_BATCH_INVARIANT and quantization is not None:
        raise ValueError(
            f"VLLM_BATCH_INVARIANT (deterministic: true sets it) is not for weights quantized by "
            f"{quantization}: a row would depend on what else runs"
        )


def refuse_online_quantization(config: VllmConfig) -> None:
    """Refuse to quantize a checkpoint's weights on a CPU: vLLM has kernels for it on GPUs only."""
    is_stored = config.model_config.model_arch_config.quantization_config is not None
    quantization = config.model_config.quantization
    if current_platform.is_cpu() and quantization is not None and not is_stored:
        raise ValueError(
            f"quantization {quantization}: vLLM cannot quantize weights while it loads them on a "
            "CPU; leave it out, or take a checkpoint that is quantized"
        )


def refuse_lora_of_experts(config: VllmConfig) -> None:
    """Refuse adapters for a model with experts where there is no Triton.

    vLLM computes its experts by Triton then, whichever modules are adapted: the first step would
    end the engine.
    """
    num_experts = getattr(config.model_config.hf_text_config, "num_experts", 0)
    if config.lora_config is not None and num_experts and not HAS_TRITON:
        raise ValueError(
            "enable_lora: with adapters vLLM computes experts by Triton, which is not here"
        )


def refuse_expert_parallel_lanes(config: VllmConfig) -> None:
    """Refuse lanes that share their experts on a CPU: vLLM's engine would end at the first step."""
    parallel = config.parallel_config
    has_both = parallel.enable_expert_parallel and parallel.data_parallel_size > 1
    if current_platform.is_cpu() and has_both:
        raise ValueError("enable_expert_parallel: not with a data_parallel_size on a CPU")


def engine_of_all_rows(ports: StagePorts) -> tuple[dict[str, object], float]:
    """Engine arguments of a stage from which the rows of all tokens leave, and GiB of kept rows.

    If it drafts, its steps follow each other, so that at each it is known which drafts of the step
    before were accepted, and no rows are kept. Raises ValueError for arguments against that.
    """
    engine, gib = ports.engine, asked_gib(ports)
    drafts = drafting(engine)
    if drafts is None:
        return engine, gib
    has_pipeline = (engine.get("pipeline_parallel_size") or 1) > 1
    if engine.get("async_scheduling") or has_pipeline:
        name, allowed = ("pipeline_parallel_size", 1) if has_pipeline else (ASYNC, "false")
        raise ValueError(
            f"stage {ports.name} has a {drafts} and an edge with the rows of all tokens: "
            f"{name} must be {allowed} there, since a step begins when the drafts of the one "
            "before are accepted or not"
        )
    return {**engine, ASYNC: False}, 0.0


def refuse_drafts(options: Mapping[str, Any], bridge: BridgeConfig) -> None:
    """Refuse speculation in an engine whose tokens wait for inputs, which drafts have not, and in
    one from whose pipeline rows leave: there vLLM ends a drafting step on the last rank only.
    """
    name = drafting(options)
    if name is not None and bridge.late_inputs:
        raise ValueError(f"{name}: not in an engine that takes late inputs")
    if name is not None and (options.get("pipeline_parallel_size") or 1) > 1:
        raise ValueError(f"{name}: pipeline_parallel_size must be 1 in a stage with an edge")
