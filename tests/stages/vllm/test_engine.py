"""What is refused before an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm import engine
from omnistage.stages.vllm.engine import refuse_lora_of_experts


def config(num_experts: int | None, targets: list[str] | None = None, has_lora: bool = True) -> Any:
    text = SimpleNamespace() if num_experts is None else SimpleNamespace(num_experts=num_experts)
    return SimpleNamespace(
        lora_config=SimpleNamespace(target_modules=targets) if has_lora else None,
        model_config=SimpleNamespace(hf_text_config=text),
    )


@pytest.mark.parametrize("targets", [None, ["qkv_proj", "experts"]])
def test_adapters_of_experts_without_triton_are_refused_with_a_way_out(
    targets: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"lora_target_modules: \[qkv_proj, o_proj\]"):
        refuse_lora_of_experts(config(4, targets))
    monkeypatch.setattr(engine, "HAS_TRITON", True)
    refuse_lora_of_experts(config(4, targets))


def test_adapters_of_all_else_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HAS_TRITON", False)
    refuse_lora_of_experts(config(4, ["qkv_proj"]))
    refuse_lora_of_experts(config(4, has_lora=False))
    refuse_lora_of_experts(config(0))
    refuse_lora_of_experts(config(None))
