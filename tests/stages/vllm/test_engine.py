"""What is refused before an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm import engine
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine import (
    engine_of_all_rows,
    make_engine,
    refuse_expert_parallel_lanes,
    refuse_lora_of_experts,
)
from omnistage.stages.vllm.ports import BridgeConfig
from omnistage.stages.vllm.step_schema import RowInput, StepSchema


def config(num_experts: int | None, has_lora: bool = True) -> Any:
    text = SimpleNamespace() if num_experts is None else SimpleNamespace(num_experts=num_experts)
    return SimpleNamespace(
        lora_config=SimpleNamespace() if has_lora else None,
        model_config=SimpleNamespace(hf_text_config=text),
    )


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


def test_an_engine_that_takes_late_inputs_drafts_nothing() -> None:
    late = BridgeConfig(StepSchema(rows=RowInput(2)))
    with pytest.raises(ValueError, match="speculative_config: not in an engine that takes late in"):
        make_engine(AsyncLLM, "none", DRAFTS, late)
