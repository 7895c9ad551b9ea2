"""A tiny DreamID-Omni in the published layout, with random weights."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Module
from transformers import UMT5Config, UMT5EncoderModel

from omnistage.stages.checkpoint.files import write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer
from omnistage.stages.dreamid_omni.audio_vae import NUM_MELS, AudioVae
from omnistage.stages.dreamid_omni.checkpoint import layout, names
from omnistage.stages.dreamid_omni.checkpoint.audio_weights import DIRECTIONS, GAIN, SIZES
from omnistage.stages.dreamid_omni.checkpoint.weights import HEAD_SIZE_KEY, VIDEO_VAE_SIZES
from omnistage.stages.dreamid_omni.transformer import FusionTransformer, TowerSizes
from omnistage.stages.dreamid_omni.vocoder import Vocoder

TEXT_SIZE, SIZE, HEAD_SIZE = 32, 64, 32
LATENTS, AUDIO_LATENTS = 48, 20
VOCODER_SIZE, LOUDNESS = 64, 0.03
RATES = (4, 4, 2, 2, 2, 2)
Weights = dict[str, Tensor]


def write_tiny_dreamid_omni(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder."""
    random = torch.Generator().manual_seed(seed)
    for file in (layout.FUSION, layout.AUDIO_VAE, layout.TEXT_ENCODER):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / layout.TOKENIZER).mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder / layout.TOKENIZER, tokenizer)
    sizes = [
        TowerSizes(channels, SIZE, 2 * SIZE, TEXT_SIZE, TEXT_SIZE, 2, HEAD_SIZE)
        for channels in (LATENTS, AUDIO_LATENTS)
    ]
    fusion = _weights(lambda: FusionTransformer(*sizes), names.FUSION, random)
    save_file(fusion, folder / layout.FUSION, {HEAD_SIZE_KEY: str(HEAD_SIZE)})
    text = UMT5Config(
        vocab_size=tokenizer.padded_size,
        d_model=TEXT_SIZE,
        d_kv=16,
        d_ff=TEXT_SIZE,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    texts = _weights(lambda: UMT5EncoderModel(text), names.TEXT_ENCODER, random)
    torch.save(texts, folder / layout.TEXT_ENCODER)
    video = _weights(
        lambda: AutoencoderKLWan(base_dim=8, decoder_base_dim=8, **VIDEO_VAE_SIZES),
        names.VIDEO_VAE,
        random,
    )
    torch.save(video, folder / layout.VIDEO_VAE)
    audio = _weights(lambda: AudioVae(16, AUDIO_LATENTS), (), random)
    for name, middle in (("data_mean", -1.5), ("data_std", 1.0)):
        audio[name] = middle + 0.1 * torch.randn(1, NUM_MELS, 1, generator=random)
    audio |= {f"{part}.{GAIN}": torch.tensor(0.2) for part in ("encoder", "decoder")}
    torch.save(audio, folder / layout.AUDIO_VAE)
    torch.save({"generator": _vocoder_weights(random)}, folder / layout.VOCODER)


def _weights(make: Callable[[], Module], renaming: names.Names, random: torch.Generator) -> Weights:
    """Return random weights of a module by their published names."""
    with init_empty_weights(include_buffers=False):
        module = make()
    made = {}
    for name, one in module.state_dict().items():
        theirs = names.published(name, renaming)
        if theirs not in made:  # a module may have one twice
            made[theirs] = _noise(name, one.shape, random)
    return made


def _noise(name: str, shape: torch.Size, random: torch.Generator) -> Tensor:
    """Return a weight that keeps the size of what goes through it."""
    noise = torch.randn(shape, generator=random)
    if name.endswith("gamma") or (noise.ndim == 1 and name.endswith("weight")):
        return 1 + 0.1 * noise
    if noise.ndim == 1 or "scale_shift_table" in name:
        return 0.1 * noise
    is_table = name.startswith("shared") or "attention_bias" in name
    return noise if is_table else noise / math.sqrt(noise[0].numel())


def _vocoder_weights(random: torch.Generator) -> Weights:
    """Return a vocoder's weights as sizes and directions, and the filters that its file has."""
    vocoder = Vocoder(NUM_MELS, VOCODER_SIZE, RATES)
    made = {}
    for name, one in vocoder.state_dict().items():
        noise = torch.randn(one.shape, generator=random)
        owner = name.removesuffix("weight")
        if owner != name:
            size = LOUDNESS if name.startswith("conv_post") else 1.0
            made[owner + SIZES[1]] = torch.full((len(one), 1, 1), size)
            made[owner + DIRECTIONS[1]] = noise
        else:
            made[name] = 0.1 * noise
    for name, one in vocoder.named_buffers():
        made[name.replace("downsample.", "downsample.lowpass.")] = one.clone()
    return made
