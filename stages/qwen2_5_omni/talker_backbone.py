"""The talker's layers as vLLM compiles them: one calling form, positions of three axes."""

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaModel


@support_torch_compile(dynamic_arg_dims={"positions": -1, "inputs_embeds": 0})
class TalkerBackbone(LlamaModel):
    """vLLM's Llama, compiled for embeddings and M-RoPE positions.

    With `qkv_bias` it has the layers of the talker's Qwen2; vLLM's Qwen2 takes no size of heads
    that the hidden size does not give. The compiled code is captured with the addresses of its
    arguments: callers pass slices of the same buffers every time.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.embed_tokens = nn.Identity()  # the talker's own are as wide as the thinker's

    def forward(self, positions: torch.Tensor, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] from positions [3, n] and embeddings [n, hidden]."""
        return super().forward(None, positions, None, inputs_embeds)
