"""Reading token2wav, and only token2wav, from a Qwen2.5-Omni checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniDiTRotaryEmbedding,
    Qwen2_5OmniToken2WavModel,
    kaiser_sinc_filter1d,
)

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_options import Token2WavOptions
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_voices import FILE, Speaker, read_speakers
from omnistage.stages.vocoder.checkpoint import find, read_config, read_part
from omnistage.stages.vocoder.decoder import Decoder
from omnistage.stages.vocoder.start import DecoderOptions

PREFIX = "token2wav."
DUMMY_BOUND = 0.03  # its sound then varies, and is not clipped


def load_token2wav(
    model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
) -> Qwen2_5OmniToken2WavModel:
    """That of a checkpoint folder or hub name; without weights, one with dummy weights.

    In float32, but for the matrices of the DiT's layers, which are of the dtype.
    """
    with torch.device("meta"):
        loaded = _made(model)
    net: Any = loaded
    if has_weights:
        tensors = {name: one.float() for name, one in read_part(model, PREFIX, device)}
        net.load_state_dict(tensors, assign=True)
    else:
        net.to_empty(device=device)
        for parameter in net.parameters():
            parameter.zero_()
        fill_with_dummy_weights(net.named_parameters(), DUMMY_BOUND)
    _restore_buffers(net, device)
    _cast_layers(net, dtype)
    return loaded


def empty_token2wav(model: str, dtype: torch.dtype) -> Qwen2_5OmniToken2WavModel:
    """That of a checkpoint folder or hub name as shapes alone: on the meta device."""
    with torch.device("meta"):
        empty = _made(model)
    _cast_layers(empty, dtype)
    return empty


def num_embeddings(model: str) -> int:
    """The codes that token2wav of a checkpoint folder or hub name can speak."""
    return int(_config(model).dit_config.num_embeds) + 1


def load_speakers(model: str) -> dict[str, Speaker]:
    """Loads the speakers of a checkpoint folder or hub name."""
    file = find(model, FILE)
    if file is None:
        raise FileNotFoundError(f"{model} has no {FILE}: nobody to speak as")
    return read_speakers(file)


def memory(
    model: str, options: Token2WavOptions, dtype: torch.dtype, num_slots: int
) -> dict[str, int]:
    """Bytes that the stage's token2wav holds, by what for; nothing is loaded."""
    empty: Any = empty_token2wav(model, dtype)
    decoder = Token2Wav(empty, {}, options.schedule, num_slots=1)
    weights = sum(parameter.nbytes for parameter in empty.parameters())
    return {
        "weights": weights + decoder.dit.table_bytes,
        "slots": num_slots * decoder.bytes_each,
    }


def _config(model: str) -> Qwen2_5OmniToken2WavConfig:
    settings = read_config(model)
    if "token2wav_config" not in settings:
        raise ValueError(f"{model} has no token2wav_config: not a Qwen2.5-Omni checkpoint")
    return Qwen2_5OmniToken2WavConfig(**settings["token2wav_config"])


def _made(model: str) -> Qwen2_5OmniToken2WavModel:
    made = Qwen2_5OmniToken2WavModel(_config(model))
    module: nn.Module = made
    module.float().train(False).requires_grad_(False)
    return made


def _restore_buffers(net: Any, device: torch.device) -> None:
    """Fills buffers that no checkpoint holds, which are on the meta device or empty."""
    dit = net.code2wav_dit_model
    dit.rotary_embed = Qwen2_5OmniDiTRotaryEmbedding(dit.config).to(device)
    for module in _filters(net):
        ratio, size = module.stride, module.kernel_size
        module.filter = kaiser_sinc_filter1d(0.5 / ratio, 0.6 / ratio, size).to(device)


def _filters(net: Any) -> Iterator[Any]:
    """Returns the filters of up- and downsampling, which are made of their ratio."""
    return (
        module for module in net.modules() if "filter" in dict(module.named_buffers(recurse=False))
    )


def _cast_layers(net: Any, dtype: torch.dtype) -> None:
    for layer in net.code2wav_dit_model.transformer_blocks:
        layer.attn.to(dtype)
        layer.ff.to(dtype)


@dataclass(frozen=True, slots=True)
class Token2WavWeights:
    """The weights of a checkpoint for a stage with these options, for the stage's commands."""

    folder: str
    options: DecoderOptions
    own: Token2WavOptions

    @property
    def are_stored(self) -> bool:
        """Returns whether they are the checkpoint's, and no dummy weights."""
        return self.options.has_weights

    def model_of(self, decoder: Decoder[Any]) -> Qwen2_5OmniToken2WavModel:
        """Returns what the stage's decoder was made of."""
        assert isinstance(decoder, Token2Wav)
        return decoder.model

    def read(
        self, folder: str, device: torch.device, *, are_stored: bool
    ) -> Qwen2_5OmniToken2WavModel:
        """That of a checkpoint folder or hub name."""
        return load_token2wav(folder, device, self.options.torch_dtype, has_weights=are_stored)

    def decoder(self, model: Qwen2_5OmniToken2WavModel) -> Token2Wav:
        """The stage's, with its own speakers."""
        speakers = load_speakers(self.folder)
        return Token2Wav(model, speakers, self.own.schedule, self.options.num_slots)

    def nothing(self) -> Token2Wav:
        """Shapes alone, on the meta device."""
        empty = empty_token2wav(self.folder, self.options.torch_dtype)
        return Token2Wav(empty, {}, self.own.schedule, num_slots=1)
