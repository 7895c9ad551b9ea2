"""What is refused before an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm import engine
from omnistage.stages.vllm.engine import refuse_lora_of_experts


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
