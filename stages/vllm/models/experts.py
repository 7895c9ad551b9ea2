"""Routed experts that leave room on the GPU for other processes while steps have few rows.

vLLM asks a layer's method for the class of its experts; a model of ours names another one there
when it is made, where vLLM chose its Triton kernels. What a row gets is the same, to the last bit.
"""

from typing import Any

import torch
import vllm.envs
from torch import nn
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.layers.fused_moe.utils import moe_kernel_quantize_input

MOST_ROWS = 128  # of a step; with more an expert has rows enough for vLLM's larger tiles


class SharingExperts(TritonExperts):
    """vLLM's Triton experts, whose products are kernels of few programs in steps of few rows."""

    def apply(self, **arguments: Any) -> None:
        """Computes like the in-tree class: `output` is written, both workspaces are used."""
        if self.takes(**arguments):
            self.multiply(**arguments)
        else:
            super().apply(**arguments)

    def takes(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        activation: MoEActivation,
        expert_map: torch.Tensor | None,
        apply_router_weight_on_input: bool,
        **_: Any,
    ) -> bool:
        """Returns whether a step is one for our kernels: gated layers in half precision or float8.

        Of float8 those with a scale for each row and each output. Ranks that have a part of the
        experts, adapters and biases are vLLM's.
        """
        from omnistage.stages.vllm.models.experts_kernel import fits

        config = self.quant_config
        is_scaled = bool(config.use_fp8_w8a8) and self.per_act_token_quant
        is_half = self.quant_dtype is None and w1.dtype in (torch.bfloat16, torch.float16)
        is_plain = (
            activation == MoEActivation.SILU
            and config.gemm1_clamp_limit is None
            and expert_map is None
            and self._lora_context is None
            and self.w1_bias is None
            and self.w2_bias is None
            and not apply_router_weight_on_input
        )
        return (
            len(hidden_states) <= MOST_ROWS
            and is_plain
            and (is_half or (is_scaled and self.block_shape is None and self.per_out_ch_quant))
            and w1.is_contiguous()
            and w2.is_contiguous()
            and fits(w1.shape[1] // 2, w1.shape[2])
            and fits(w2.shape[1], w2.shape[2])
        )

    def multiply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        **_: object,
    ) -> None:
        """Both products of a step, and the sum of each row's picks."""
        from omnistage.stages.vllm.models.experts_kernel import assign, multiply

        num_rows, num_picks = topk_ids.shape
        num_inner, size = w1.shape[1] // 2, w1.shape[2]
        count = num_rows * num_picks
        inner = workspace13.flatten()[: count * num_inner].view(count, num_inner)
        picked = workspace2.flatten()[: count * size].view(count, size)
        assigned = assign(topk_ids, len(w1))
        num_processors = torch.cuda.get_device_properties(w1.device).multi_processor_count
        multiply(
            hidden_states,
            w1,
            inner,
            assigned,
            num_processors,
            scales=None if a1q_scale is None else (a1q_scale, self.w1_scale),
        )
        quantized, scale = moe_kernel_quantize_input(
            inner, a2_scale, self.quant_dtype, self.per_act_token_quant, self.block_shape
        )
        multiply(
            quantized,
            w2,
            picked,
            assigned,
            num_processors,
            pick_weights=topk_weights,
            scales=None if scale is None else (scale, self.w2_scale),
        )
        self.moe_sum(picked.view(num_rows, num_picks, size), output)


def share_experts(model: nn.Module) -> None:
    """Let a model's experts leave room, where vLLM chose its Triton kernels; before its weights.

    With VLLM_BATCH_INVARIANT they stay vLLM's, as a row then gets the same in steps of any length.
    """
    if vllm.envs.VLLM_BATCH_INVARIANT:
        return
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "experts_cls", None) is TritonExperts:
            method.experts_cls = SharingExperts
