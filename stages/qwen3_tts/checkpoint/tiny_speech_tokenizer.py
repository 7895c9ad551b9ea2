"""Writes a tiny `speech_tokenizer/`, with random weights: sound to codes and codes to sound."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import MimiConfig, MimiModel

from omnistage.stages.qwen3_tts.checkpoint.noise import fill_with_noise
from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    Config,
    tiny_config,
    write_speech_tokenizer_config,
)
from omnistage.stages.qwen3_tts.codec_decoder import CodecDecoder, Quantizer, codec_config
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece

Tensors = dict[str, torch.Tensor]

# What encoding needs of Mimi; a checkpoint has no more of it.
ENCODER_PARTS = ("encoder.", "encoder_transformer.", "downsample.", "quantizer.")
_CODEBOOK_SCALE = 0.4  # of the encoder's: several entries are near what a sound becomes
_PEAK = 0.4  # of the waveform, for random codes


def write_tiny_speech_tokenizer(folder: Path, seed: int = 0) -> None:
    """Write the speech tokenizer of this seed into a folder, in the layout of a checkpoint."""
    config = tiny_config()
    write_speech_tokenizer_config(folder, config)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        **{f"decoder.{name}": one for name, one in _decoder(config, generator).items()},
        **{f"encoder.{name}": one for name, one in _encoder(config, generator).items()},
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def _decoder(config: Config, generator: torch.Generator) -> Tensors:
    model = CodecDecoder(codec_config(config["decoder_config"])).float().eval()
    fill_with_noise(model, generator)
    _set_loudness(model)
    state = model.state_dict()
    quantizer = model.quantizer
    for name, part in (("rvq_first", quantizer.rvq_first), ("rvq_rest", quantizer.rvq_rest)):
        place = f"quantizer.{name}"
        del state[f"{place}.codebooks"]
        state |= {f"{place}.{key}": one for key, one in _stored(part, generator)}
    return {name: one.contiguous() for name, one in state.items()}


def _stored(quantizer: Quantizer, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """A codebook is the sum of what was nearest to each entry in training, and how much it was."""
    output_width, width, _ = quantizer.output_proj.weight.shape
    yield "input_proj.weight", torch.randn((width, output_width, 1), generator=generator)
    for layer, codebook in enumerate(quantizer.codebooks):
        usage = 0.5 + torch.rand(len(codebook), generator=generator)
        yield f"vq.layers.{layer}._codebook.cluster_usage", usage
        yield f"vq.layers.{layer}._codebook.embedding_sum", codebook * usage[:, None]


@torch.no_grad()
def _encoder(config: Config, generator: torch.Generator) -> Tensors:
    model = MimiModel(MimiConfig(**config["encoder_config"])).float().eval()
    fill_with_noise(model, generator)
    for name, buffer in model.named_buffers():
        if name.endswith("cluster_usage"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        elif name.endswith("embed_sum"):
            buffer.copy_(_CODEBOOK_SCALE * torch.randn(buffer.shape, generator=generator))
    state = model.state_dict()
    return {name: one for name, one in state.items() if name.startswith(ENCODER_PARTS)}


def _set_loudness(model: CodecDecoder) -> None:
    """Scale the last convolution so that a stretch of random codes peaks where a voice should.

    It is measured far below the final clamp to -1 ... 1, where the output is linear in that scale.
    """
    config = model.config
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(config.codebook_size, (50, config.num_quantizers), generator=generator)
    last = model.decoder[-1]
    _scale(last, 1e-4)
    vocoder = StreamingVocoder(model, num_slots=1)
    sound = vocoder.decode([StreamPiece(vocoder.open(), codes.int().numpy())]).pcm
    _scale(last, _PEAK / sound.abs().max().item())


def _scale(layer: nn.Module, factor: float) -> None:
    for parameter in layer.parameters():
        parameter.mul_(factor)
