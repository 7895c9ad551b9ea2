"""What is refused before an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs

from omnistage.stages.vllm import engine
from omnistage.stages.vllm.engine import (
    refuse_drafts,
    refuse_expert_parallel_lanes,
    refuse_lora_of_experts,
    refuse_quantized_invariance,
)


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


def test_rows_of_drafts_do_not_leave() -> None:
    ports: Any = SimpleNamespace(name="thinker", engine={"speculative_config": {"method": "ngram"}})
    with pytest.raises(ValueError, match="stage thinker has an edge and a speculative_config"):
        refuse_drafts(ports)
    ports.engine = {}
    refuse_drafts(ports)
