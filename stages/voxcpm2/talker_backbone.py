"""The talker's two language models as vLLM's layers: both over the same positions and slots.

Math: MiniCPMModel of voxcpm, twice. The first one's rows are rounded by a scalar quantizer where
they are of audio, and with the embedded audio become the inputs of the second.
"""

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.models.llama import LlamaMLP

from omnistage.stages.voxcpm2.minicpm import rotated, rotations
from omnistage.stages.voxcpm2.settings import LayersConfig, VoxCPM2Settings


class TalkerAttention(nn.Module):
    """Causal attention over vLLM's cache."""

    def __init__(self, config: LayersConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        quantization = vllm_config.quant_config
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=quantization,
            prefix=f"{prefix}.o_proj",
        )
        num_heads, num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self._sizes = [count * config.head_dim for count in (num_heads, num_kv_heads, num_kv_heads)]
        self.attn = Attention(
            num_heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=num_kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=quantization,
            prefix=f"{prefix}.attn",
        )

    def forward(self, hidden: torch.Tensor, rotation: torch.Tensor | None) -> torch.Tensor:
        """From [n, hidden] and rotations [2, n, 1, head_dim], or none."""
        projected, _ = self.qkv_proj(hidden)
        queries, keys, values = projected.split(self._sizes, dim=-1)
        if rotation is not None:
            queries, keys = (
                rotated(one.unflatten(-1, (-1, self._head_dim)), rotation).flatten(1)
                for one in (queries, keys)
            )
        output, _ = self.o_proj(self.attn(queries, keys, values))
        return output


class TalkerLayer(nn.Module):
    """Attention and a network, each of which adds to its input."""

    def __init__(self, config: LayersConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self._scale = config.branch_scale
        self.self_attn = TalkerAttention(config, vllm_config, f"{prefix}.self_attn")
        self.mlp = LlamaMLP(
            config.hidden_size,
            config.intermediate_size,
            "silu",
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.mlp",
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, rotation: torch.Tensor | None) -> torch.Tensor:
        """From [n, hidden] to the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation) * self._scale
        return hidden + self.mlp(self.post_attention_layernorm(hidden)) * self._scale


class TalkerLayers(nn.Module):
    """One language model; `first`: the number of its first layer among those of the engine."""

    rotation: torch.Tensor

    def __init__(
        self, config: LayersConfig, vllm_config: VllmConfig, prefix: str, first: int = 0
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TalkerLayer(config, vllm_config, f"{prefix}.layers.{first + number}")
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rotates = not config.no_rope
        num_positions = vllm_config.model_config.max_model_len if self._rotates else 0
        table = rotations(config, num_positions).to(torch.get_default_device())
        self.register_buffer("rotation", table, persistent=False)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """From positions [n] and inputs [n, hidden] to hidden states [n, hidden]."""
        rotation = self.rotation[:, positions].unsqueeze(2) if self._rotates else None
        for layer in self.layers:
            hidden = layer(hidden, rotation)
        return self.norm(hidden)


class ScalarQuantizer(nn.Module):
    """Rows rounded to a grid."""

    def __init__(self, size: int, latent_size: int, scale: int) -> None:
        super().__init__()
        self._scale = scale
        self.in_proj = nn.Linear(size, latent_size)
        self.out_proj = nn.Linear(latent_size, size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Row by row."""
        grid = torch.round(torch.tanh(self.in_proj(hidden)) * self._scale) / self._scale
        output: torch.Tensor = self.out_proj(grid)
        return output


@support_torch_compile(dynamic_arg_dims={"positions": 0, "inputs": 0, "is_audio": 0})
class TalkerBackbone(nn.Module):
    """Both language models, and what is between them.

    The compiled code is captured with the addresses of its arguments: callers pass slices of the
    same buffers every time.
    """

    def __init__(
        self, *, vllm_config: VllmConfig, prefix: str = "", settings: VoxCPM2Settings
    ) -> None:
        super().__init__()
        lm = settings.lm_config
        size = lm.hidden_size
        self.base_lm = TalkerLayers(lm, vllm_config, prefix)
        self.fsq_layer = ScalarQuantizer(
            size, settings.scalar_quantization_latent_dim, settings.scalar_quantization_scale
        )
        self.fusion_concat_proj = nn.Linear(2 * size, size)
        self.residual_lm = TalkerLayers(
            settings.residual_config, vllm_config, prefix, first=lm.num_hidden_layers
        )

    def forward(
        self, positions: torch.Tensor, inputs: torch.Tensor, is_audio: torch.Tensor
    ) -> torch.Tensor:
        """Rows of both models side by side [n, 2 * hidden].

        From positions [n], inputs [n, hidden], and whether they are of audio, bool [n, 1].
        """
        hidden = self.base_lm(positions, inputs)
        hidden = torch.where(is_audio, self.fsq_layer(hidden), hidden)
        audio = torch.where(is_audio, inputs, 0.0)
        fused = self.fusion_concat_proj(torch.cat([hidden, audio], dim=-1))
        return torch.cat([hidden, self.residual_lm(positions, fused)], dim=-1)
