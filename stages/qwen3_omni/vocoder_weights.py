"""Reading the vocoder, and only the vocoder, from a Qwen3-Omni checkpoint."""

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeRotaryEmbedding,
)

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.vocoder.checkpoint import read_config, read_part

PREFIX = "code2wav."
DUMMY_BOUND = 0.03  # its sound then varies, and is not clipped


def load_vocoder(
    model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
) -> Qwen3OmniMoeCode2Wav:
    """The vocoder of a checkpoint folder or hub name; without weights, one with dummy weights."""
    config = _read_config(model)
    if not has_weights:
        with torch.device(device):
            vocoder = _freeze(Qwen3OmniMoeCode2Wav(config), dtype)
        named: nn.Module = vocoder
        fill_with_dummy_weights(named.named_parameters(), DUMMY_BOUND)
        return vocoder
    with torch.device("meta"):
        vocoder = Qwen3OmniMoeCode2Wav(config)
    tensors = {name: one.to(dtype) for name, one in read_part(model, PREFIX, device)}
    vocoder.load_state_dict(tensors, assign=True)
    _restore_buffers(vocoder, device)
    return _freeze(vocoder, dtype)


def empty_vocoder(model: str, dtype: torch.dtype) -> Qwen3OmniMoeCode2Wav:
    """The vocoder of a checkpoint folder or hub name as shapes alone: on the meta device."""
    with torch.device("meta"):
        return _freeze(Qwen3OmniMoeCode2Wav(_read_config(model)), dtype)


def _read_config(model: str) -> Qwen3OmniMoeCode2WavConfig:
    settings = read_config(model)
    if "code2wav_config" not in settings:
        raise ValueError(f"{model} has no code2wav_config: not a Qwen3-Omni checkpoint")
    return Qwen3OmniMoeCode2WavConfig(**settings["code2wav_config"])


def _freeze(vocoder: Qwen3OmniMoeCode2Wav, dtype: torch.dtype) -> Qwen3OmniMoeCode2Wav:
    module: nn.Module = vocoder
    module.to(dtype).train(False).requires_grad_(False)
    return vocoder


def _restore_buffers(vocoder: Qwen3OmniMoeCode2Wav, device: torch.device) -> None:
    """Fills buffers that no checkpoint holds, which are still on the meta device."""
    config = vocoder.config
    offsets = torch.arange(config.num_quantizers, device=device) * config.codebook_size
    vocoder.code_offset = offsets.view(1, -1, 1)
    vocoder.pre_transformer.rotary_emb = Qwen3OmniMoeRotaryEmbedding(config).to(device)
