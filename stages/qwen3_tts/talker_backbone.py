"""The talker's layers as vLLM compiles them: one calling form."""

import torch
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.models.qwen3 import Qwen3Model


@support_torch_compile(dynamic_arg_dims={"positions": -1, "inputs_embeds": 0})
class TalkerBackbone(Qwen3Model):
    """vLLM's dense Qwen3, compiled for embeddings.

    The compiled code is captured with the addresses of its arguments: callers pass slices of the
    same buffers every time.
    """

    def forward(self, positions: torch.Tensor, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] from positions [1, n] and embeddings [n, hidden]."""
        return super().forward(None, positions[0], None, inputs_embeds)
