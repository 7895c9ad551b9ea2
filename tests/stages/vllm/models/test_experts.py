"""Which steps of which layers are our kernels', and that these give what vLLM's give."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.envs
from support.kernels import relative_error
from torch import nn
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEQuantConfig,
    fp8_w8a8_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

from omnistage.stages.vllm.models.experts import MOST_ROWS, SharingExperts, share_experts

NUM_EXPERTS, NUM_PICKS, SIZE, INNER = 16, 4, 1024, 384


def layer(experts: Any) -> nn.Module:
    found = nn.Module()
    found.quant_method = SimpleNamespace(experts_cls=experts)  # type: ignore[assignment]
    return found


def test_experts_leave_room_where_vllm_chose_its_triton_kernels() -> None:
    other = type("Other", (TritonExperts,), {})
    model: Any = nn.ModuleList([layer(TritonExperts), layer(other), nn.Linear(2, 2)])
    share_experts(model)
    assert [one.quant_method.experts_cls for one in model[:2]] == [SharingExperts, other]


def test_experts_stay_vllms_when_rows_must_not_depend_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    model: Any = nn.ModuleList([layer(TritonExperts)])
    share_experts(model)
    assert model[0].quant_method.experts_cls is TritonExperts


def experts_of(kind: Any, config: FusedMoEQuantConfig) -> Any:
    """Without what a server's configuration says of parallel ranks."""
    made = kind.__new__(kind)
    made.quant_config, made._lora_context = config, None
    made.quantization_emulation = False
    made.gemm1_clamp_limit, made.gemm1_alpha, made.gemm1_beta = None, 1.0, 0.0
    return made


def weights(dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Any:
    generator = torch.Generator(device).manual_seed(0)
    first, second = (
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16).mul_(0.05)
        for shape in ((NUM_EXPERTS, 2 * INNER, SIZE), (NUM_EXPERTS, SIZE, INNER))
    )
    return first.to(dtype), second.to(dtype)


def step(num_rows: int = 8, **changed: Any) -> dict[str, Any]:
    first, second = weights()
    usual = {
        "hidden_states": torch.zeros(num_rows, SIZE, dtype=torch.bfloat16),
        "w1": first,
        "w2": second,
        "activation": MoEActivation.SILU,
        "expert_map": None,
        "apply_router_weight_on_input": False,
    }
    return {**usual, **changed}


def test_steps_of_few_rows_are_taken() -> None:
    experts = experts_of(SharingExperts, FUSED_MOE_UNQUANTIZED_CONFIG)
    assert experts.takes(**step())
    assert experts.takes(**step(MOST_ROWS))
    assert not experts.takes(**step(MOST_ROWS + 1))


@pytest.mark.parametrize(
    "changed",
    [
        {"activation": MoEActivation.GELU},
        {"expert_map": torch.zeros(NUM_EXPERTS)},
        {"apply_router_weight_on_input": True},
        {"w1": torch.zeros(NUM_EXPERTS, 2 * INNER, SIZE)},
        {"w1": torch.zeros(NUM_EXPERTS, 2 * 96, SIZE, dtype=torch.bfloat16)},
        {"w1": torch.zeros(NUM_EXPERTS, SIZE, 2 * INNER, dtype=torch.bfloat16).transpose(1, 2)},
    ],
    ids=["activation", "ranks", "weighted input", "float32", "no whole tiles", "not contiguous"],
)
def test_other_layers_are_vllms(changed: dict[str, Any]) -> None:
    experts = experts_of(SharingExperts, FUSED_MOE_UNQUANTIZED_CONFIG)
    assert not experts.takes(**step(**changed))


def test_layers_with_adapters_are_vllms() -> None:
    experts = experts_of(SharingExperts, FUSED_MOE_UNQUANTIZED_CONFIG)
    experts._lora_context = object()
    assert not experts.takes(**step())


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(-1, keepdim=True).float() / 448
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def test_float8_with_a_scale_for_each_output_is_taken_and_with_one_for_all_is_vllms() -> None:
    (first, own), (second, other) = map(quantized, weights())
    given = step(w1=first, w2=second)
    for is_each in (True, False):
        config = fp8_w8a8_moe_quant_config(
            w1_scale=own, w2_scale=other, per_act_token_quant=is_each, per_out_ch_quant=is_each
        )
        assert experts_of(SharingExperts, config).takes(**given) == is_each


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU")
@pytest.mark.parametrize("is_float8", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5, 64, 128])
def test_a_row_gets_what_vllms_kernels_give(num_rows: int, is_float8: bool) -> None:
    from vllm import _custom_ops as ops

    first, second = weights(device="cuda")
    generator = torch.Generator("cuda").manual_seed(num_rows)
    shape = num_rows, SIZE
    rows = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
    logits = torch.randn(num_rows, NUM_EXPERTS, generator=generator, device="cuda")
    chosen, picks = logits.softmax(-1).topk(NUM_PICKS)
    config, hidden, scale = FUSED_MOE_UNQUANTIZED_CONFIG, rows, None
    if is_float8:
        (first, own), (second, other) = quantized(first), quantized(second)
        config = fp8_w8a8_moe_quant_config(
            w1_scale=own, w2_scale=other, per_act_token_quant=True, per_out_ch_quant=True
        )
        hidden, scale = ops.scaled_fp8_quant(rows, use_per_token_if_dynamic=True)
    results = []
    for kind in (TritonExperts, SharingExperts):
        experts = experts_of(kind, config)
        given = {
            "output": torch.full_like(rows, float("nan")),
            "topk_weights": chosen,
            "topk_ids": picks.to(torch.int32),
            "global_num_experts": NUM_EXPERTS,
            "a1q_scale": scale,
            "a2_scale": None,
            "workspace13": torch.empty(num_rows, NUM_PICKS, SIZE, device="cuda").bfloat16(),
            "workspace2": torch.empty(num_rows, NUM_PICKS, SIZE, device="cuda").bfloat16(),
            "expert_tokens_meta": None,
            **step(hidden_states=hidden, w1=first, w2=second),
        }
        if kind is SharingExperts:
            assert experts.takes(**given)
        experts.apply(**given)
        results.append(given["output"])
    assert relative_error(results[1], results[0]) < 1e-3
