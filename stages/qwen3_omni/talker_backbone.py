"""The talker's layers as vLLM compiles them: one calling form, positions of three axes."""

import torch
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel


@support_torch_compile(dynamic_arg_dims={"positions": -1, "inputs_embeds": 0})
class TalkerBackbone(Qwen3MoeModel):
    """vLLM's Qwen3-MoE, compiled for embeddings and M-RoPE positions.

    The compiled code is captured with the addresses of its arguments: callers pass slices of the
    same buffers every time.
    """

    def forward(self, positions: torch.Tensor, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] from positions [3, n] and embeddings [n, hidden]."""
        return super().forward(None, positions, None, inputs_embeds)
