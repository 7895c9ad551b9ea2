"""What is refused before an engine starts."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs

from omnistage.stage_configs.rules.determinism import SECOND_RUNNER
from omnistage.stages.vllm.answers.truncation import PATH as TRUNCATION
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine import engine
from omnistage.stages.vllm.engine.engine import (
    START_METHOD,
    configured,
    engine_of_all_rows,
    fuses_rotation,
    make_engine,
    refuse_expert_parallel_lanes,
    refuse_lora_of_experts,
    refuse_online_quantization,
    refuse_quantized_invariance,
)
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.step_schema import RowInput, StepSchema


def config(num_experts: int | None, has_lora: bool = True) -> Any:
    text = SimpleNamespace() if num_experts is None else SimpleNamespace(num_experts=num_experts)
    return SimpleNamespace(
        lora_config=SimpleNamespace() if has_lora else None,
        model_config=SimpleNamespace(hf_text_config=text),
    )


class Arguments:
    """As AsyncEngineArgs; keeps what each configuration was made with."""

    def __init__(self, *, uses_mrope: bool = True, is_async: bool = False) -> None:
        self.calls: list[dict[str, Any]] = []
        self.config = SimpleNamespace(
            model_config=SimpleNamespace(uses_mrope=uses_mrope),
            scheduler_config=SimpleNamespace(async_scheduling=is_async),
        )

    def __call__(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return SimpleNamespace(create_engine_config=lambda context: self.config)


def compilation_of(
    monkeypatch: pytest.MonkeyPatch, asked: Any, *, version: str = "0.27.1", **about: bool
) -> Any:
    """The `compilation_config` that a CUDA engine is made with at last."""
    arguments = Arguments(**about)
    numbers = tuple(int(part) for part in version.split("."))
    platform = SimpleNamespace(is_cuda=lambda: True)
    monkeypatch.setattr(engine, "EngineArguments", arguments)
    monkeypatch.setattr(engine, "current_platform", platform)
    monkeypatch.setattr(engine.vllm, "__version_tuple__", numbers)  # type: ignore[attr-defined]
    configured({"compilation_config": asked}, None)
    return arguments.calls[-1]["compilation_config"]


def test_m_rope_is_a_kernel_of_its_own_where_vllm_would_fuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = {"custom_ops": ["+rotary_embedding"]}
    nothing: list[Any] = [None, {}, {"custom_ops": None}]
    for said in nothing:
        assert compilation_of(monkeypatch, said) == apart
    assert compilation_of(monkeypatch, None, version="1.0.0") == apart
    asked = {"cudagraph_capture_sizes": [1, 2], "custom_ops": ["+rms_norm"]}
    assert compilation_of(monkeypatch, asked) == {
        "cudagraph_capture_sizes": [1, 2],
        "custom_ops": ["+rms_norm", "+rotary_embedding"],
    }
    assert asked["custom_ops"] == ["+rms_norm"]


def test_what_a_graph_file_says_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("-rotary_embedding", "+rotary_embedding", "all", "none"):
        assert compilation_of(monkeypatch, {"custom_ops": [op]}) == {"custom_ops": [op]}
    assert compilation_of(monkeypatch, 3) == 3


def test_other_versions_and_models_are_compiled_as_vllm_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compilation_of(monkeypatch, None, version="0.26.0") is None
    assert compilation_of(monkeypatch, None, uses_mrope=False) is None
    monkeypatch.undo()
    assert not fuses_rotation()  # no CUDA


def test_late_inputs_get_the_scheduler_that_fits_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bridge: Any = SimpleNamespace(late_inputs=True)
    for is_async, schedulers in (
        (False, [engine.SCHEDULER]),
        (True, [engine.SCHEDULER, engine.ASYNC_SCHEDULER]),
    ):
        arguments = Arguments(is_async=is_async)
        monkeypatch.setattr(engine, "EngineArguments", arguments)
        assert configured({"model": "m"}, bridge) is arguments.config
        assert [call["scheduler_cls"] for call in arguments.calls] == schedulers
    configured({"model": "m"}, None)
    assert "scheduler_cls" not in arguments.calls[-1]


@pytest.mark.parametrize(
    ("asked", "num_threads", "is_left"),
    [("fork", "1", "fork"), ("fork", "2", "spawn"), (None, "1", "spawn")],
)
def test_processes_begin_as_the_environment_says_although_vllm_sets_spawn_on_a_cpu(
    asked: str | None, num_threads: str, is_left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnCpu(Arguments):
        def __call__(self, **arguments: Any) -> Any:
            monkeypatch.setenv(START_METHOD, "spawn")
            return super().__call__(**arguments)

    monkeypatch.setenv("OMP_NUM_THREADS", num_threads)
    monkeypatch.delenv(START_METHOD, raising=False)
    if asked is not None:
        monkeypatch.setenv(START_METHOD, asked)
    monkeypatch.setattr(engine, "EngineArguments", OnCpu())
    configured({"model": "m"}, None)
    assert os.environ[START_METHOD] == is_left


def test_adapters_for_experts_are_refused_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"enable_lora: .* by Triton, which is not here"):
        refuse_lora_of_experts(config(4))
    monkeypatch.setattr(engine, "HAS_TRITON", True)
    refuse_lora_of_experts(config(4))


def test_adapters_for_all_else_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HAS_TRITON", False)
    refuse_lora_of_experts(config(4, has_lora=False))
    refuse_lora_of_experts(config(0))
    refuse_lora_of_experts(config(None))


def test_quantized_weights_are_refused_where_rows_must_not_depend_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def quantized(by: str | None) -> Any:
        return SimpleNamespace(model_config=SimpleNamespace(quantization=by))

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    refuse_quantized_invariance(quantized(None))
    with pytest.raises(ValueError, match="is not for weights quantized by fp8"):
        refuse_quantized_invariance(quantized("fp8"))
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", False)
    refuse_quantized_invariance(quantized("fp8"))


def test_weights_are_not_quantized_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(quantization: str | None, quantization_config: Any = None) -> Any:
        stored = SimpleNamespace(quantization_config=quantization_config)
        about = SimpleNamespace(quantization=quantization, model_arch_config=stored)
        return SimpleNamespace(model_config=about)

    refuse_online_quantization(of(None))
    refuse_online_quantization(of("fp8", quantization_config={"quant_method": "fp8"}))
    with pytest.raises(ValueError, match="quantization fp8: vLLM cannot quantize weights while"):
        refuse_online_quantization(of("fp8"))
    monkeypatch.setattr(engine, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    refuse_online_quantization(of("fp8"))


def parallel(data_parallel_size: int, enable_expert_parallel: bool) -> Any:
    sizes = SimpleNamespace(
        data_parallel_size=data_parallel_size, enable_expert_parallel=enable_expert_parallel
    )
    return SimpleNamespace(parallel_config=sizes)


def test_lanes_share_no_experts_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_cpu in (True, False):
        platform = SimpleNamespace(is_cpu=lambda is_cpu=is_cpu: is_cpu)
        monkeypatch.setattr(engine, "current_platform", platform)
        refuse_expert_parallel_lanes(parallel(1, True))
        refuse_expert_parallel_lanes(parallel(2, False))
        if not is_cpu:
            refuse_expert_parallel_lanes(parallel(2, True))
            return
        with pytest.raises(ValueError, match="enable_expert_parallel: not with a data_parallel_si"):
            refuse_expert_parallel_lanes(parallel(2, True))


DRAFTS = {"speculative_config": {"method": "ngram"}}


def ports_of(**engine: Any) -> Any:
    return SimpleNamespace(name="thinker", engine=engine, options={"row_cache_gib": 0.5})


def test_where_rows_of_all_tokens_leave_drafts_take_steps_in_turn_and_keep_no_rows() -> None:
    engine, gib = engine_of_all_rows(ports_of(**DRAFTS, pipeline_parallel_size=1))
    assert engine == {**DRAFTS, "pipeline_parallel_size": 1, "async_scheduling": False}
    assert gib == 0


def test_without_drafts_the_engine_of_all_rows_is_as_it_was_asked_for() -> None:
    asked = {"async_scheduling": True, "pipeline_parallel_size": 2}
    assert engine_of_all_rows(ports_of(**asked)) == (asked, 0.5)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"async_scheduling": True}, "stage thinker .* async_scheduling must be false there"),
        ({"pipeline_parallel_size": 2}, "stage thinker .* pipeline_parallel_size must be 1 there"),
    ],
)
def test_steps_that_overlap_are_refused_where_rows_of_drafts_wait(
    engine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        engine_of_all_rows(ports_of(**DRAFTS, **engine))


@pytest.mark.parametrize("drafts", [DRAFTS, {"spec_model": "small", "spec_tokens": 3}], ids=str)
def test_an_engine_that_takes_late_inputs_drafts_nothing(drafts: dict[str, Any]) -> None:
    late = BridgeConfig(StepSchema(rows=RowInput(2)))
    message = f"{next(iter(drafts))}: not in an engine that takes late inputs"
    with pytest.raises(ValueError, match=message):
        make_engine(AsyncLLM, "none", drafts, late)


def test_a_pipeline_from_which_rows_leave_drafts_nothing() -> None:
    options = {**DRAFTS, "pipeline_parallel_size": 2}
    message = "speculative_config: pipeline_parallel_size must be 1 in a stage with an edge"
    with pytest.raises(ValueError, match=message):
        make_engine(AsyncLLM, "none", options, BridgeConfig(StepSchema()))


@pytest.mark.parametrize("asked", [None, True])
def test_vllm_logs_requests_where_the_graph_file_says_so(
    asked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "configured", lambda arguments, bridge: None)
    for name in [one for one in vars(engine) if one.startswith(("refuse_", "check_fit"))]:
        monkeypatch.setattr(engine, name, lambda *_: None)
    given: Any = SimpleNamespace(from_vllm_config=lambda _, **more: more)
    made: Any = make_engine(
        given, "none", {} if asked is None else {"enable_log_requests": asked}, None
    )
    assert made["enable_log_requests"] is bool(asked)


class Configured(Exception):
    """An engine's arguments are whole."""


def arguments_of(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """What vLLM's configuration would be made with."""
    seen: dict[str, Any] = {}

    def stop(arguments: dict[str, Any], bridge: Any) -> Any:
        seen.update(arguments)
        raise Configured

    monkeypatch.setattr(engine, "configured", stop)
    with pytest.raises(Configured):
        make_engine(AsyncLLM, "none", options, None)
    return seen


def test_rows_that_depend_on_no_others_are_truncated_by_our_processor_of_the_first_runner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECOND_RUNNER, "1")
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", False, raising=False)
    assert "logits_processors" not in arguments_of(monkeypatch)
    assert os.environ[SECOND_RUNNER] == "1"
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    assert "logits_processors" not in arguments_of(monkeypatch, runner="pooling")
    found = arguments_of(monkeypatch, logits_processors=["theirs"])
    assert found["logits_processors"] == ["theirs", TRUNCATION]
    assert os.environ[SECOND_RUNNER] == "0"
    with pytest.raises(ValueError, match="spec_method: not with VLLM_BATCH_INVARIANT"):
        make_engine(AsyncLLM, "none", {"spec_method": "ngram"}, None)
