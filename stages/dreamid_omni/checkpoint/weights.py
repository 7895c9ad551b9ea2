"""Reads the modules of a DreamID-Omni folder, whose sizes are those of their weights."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKLWan
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module
from transformers import UMT5Config, UMT5EncoderModel

from omnistage.stages.dreamid_omni.audio_vae import NUM_MELS, AudioVae
from omnistage.stages.dreamid_omni.checkpoint import layout, names
from omnistage.stages.dreamid_omni.checkpoint.audio_weights import (
    plain_audio_vae,
    plain_vocoder,
    rates_of,
)
from omnistage.stages.dreamid_omni.transformer import FusionTransformer, TowerSizes
from omnistage.stages.dreamid_omni.video_latents import MEANS, STANDARD_DEVIATIONS

ModuleT = TypeVar("ModuleT", bound=Module)
Weights = Mapping[str, Tensor]
# Of a head of the denoiser: no weight has it, so a file with others names it in its metadata.
HEAD_SIZE, HEAD_SIZE_KEY = 128, "head_size"
VIDEO_VAE_SIZES = {
    "z_dim": len(MEANS),
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "temperal_downsample": [False, True, True],
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": list(MEANS),
    "latents_std": list(STANDARD_DEVIATIONS),
}


def read_transformer(folder: Path, dtype: torch.dtype) -> FusionTransformer:
    """Read the denoiser; raises ValueError for weights that are none of it."""
    path = layout.fusion_of(folder)
    weights = load_file(path)
    with safe_open(path, "pt") as file:
        head_size = int((file.metadata() or {}).get(HEAD_SIZE_KEY, HEAD_SIZE))
    sizes = [_tower_sizes(path, weights, name, head_size) for name in ("video", "audio")]
    return _filled(
        path,
        lambda: FusionTransformer(*sizes),
        weights,
        dtype,
        names.FUSION,
    )


def _tower_sizes(path: Path, weights: Weights, name: str, head_size: int) -> TowerSizes:
    prefix, patch = f"{name}_model.", 4 if name == "video" else 1
    try:
        size, inner_size = weights[f"{prefix}blocks.0.ffn.2.weight"].shape
        made, _ = weights[f"{prefix}head.head.weight"].shape
        _, text_size = weights[f"{prefix}text_embedding.0.weight"].shape
        _, time_size = weights[f"{prefix}time_embedding.0.weight"].shape
    except KeyError as error:
        raise ValueError(f"{path}: there is no weight {error.args[0]}") from None
    if size % head_size:
        raise ValueError(f"{path}: {name}: {size} is not a multiple of {head_size}")
    num_layers = _num_layers(weights, f"{prefix}blocks.")
    return TowerSizes(made // patch, size, inner_size, text_size, time_size, num_layers, head_size)


def read_text_encoder(folder: Path, dtype: torch.dtype) -> UMT5EncoderModel:
    """Read umT5's encoder."""
    path = folder / layout.TEXT_ENCODER
    weights = _unpickled(path)
    vocabulary, size = weights["token_embedding.weight"].shape
    num_buckets, num_heads = weights["blocks.0.pos_embedding.embedding.weight"].shape
    config = UMT5Config(
        vocab_size=vocabulary,
        d_model=size,
        d_kv=weights["blocks.0.attn.q.weight"].shape[0] // num_heads,
        d_ff=weights["blocks.0.ffn.fc1.weight"].shape[0],
        num_layers=_num_layers(weights, "blocks."),
        num_heads=num_heads,
        relative_attention_num_buckets=num_buckets,
        feed_forward_proj="gated-gelu",
    )
    return _filled(path, lambda: UMT5EncoderModel(config), weights, dtype, names.TEXT_ENCODER)


def read_video_vae(folder: Path, dtype: torch.dtype) -> AutoencoderKLWan:
    """Read the VAE of Wan 2.2."""
    path = folder / layout.VIDEO_VAE
    weights = _unpickled(path)
    base, last = (
        weights[f"{name}.weight"].shape[axis]
        for name, axis in (("encoder.conv1", 0), ("decoder.head.2", 1))
    )

    def made() -> AutoencoderKLWan:
        return AutoencoderKLWan(base_dim=base, decoder_base_dim=last, **VIDEO_VAE_SIZES)

    return _filled(path, made, weights, dtype, names.VIDEO_VAE)


def read_audio_vae(folder: Path, dtype: torch.dtype) -> AudioVae:
    """Read MMAudio's VAE, whose weights are normed once."""
    path = folder / layout.AUDIO_VAE
    weights = _unpickled(path)
    size = weights["encoder.conv_in.weight"].shape[0]
    num_latents = weights["decoder.conv_in.weight"].shape[1]
    return _filled(path, lambda: AudioVae(size, num_latents), plain_audio_vae(weights), dtype)


def read_vocoder(folder: Path, dtype: torch.dtype) -> Any:
    """Read BigVGAN, whose weights are multiplied once."""
    from omnistage.stages.dreamid_omni.vocoder import Vocoder

    path = folder / layout.VOCODER
    weights = plain_vocoder(_unpickled(path)["generator"])
    channels = weights["conv_pre.weight"].shape[0]
    return _filled(path, lambda: Vocoder(NUM_MELS, channels, rates_of(weights)), weights, dtype)


def _unpickled(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _num_layers(weights: Weights, prefix: str) -> int:
    numbers = (name.removeprefix(prefix) for name in weights if name.startswith(prefix))
    return 1 + max(int(one.partition(".")[0]) for one in numbers)


def _filled(
    path: Path,
    make: Callable[[], ModuleT],
    weights: Weights,
    dtype: torch.dtype,
    renaming: names.Names = (),
) -> ModuleT:
    """Return a module with its weights; raises ValueError if they are not just its own."""
    with init_empty_weights(include_buffers=False):
        module = make()
    wanted = module.state_dict()
    theirs = {name: names.published(name, renaming) for name in wanted}
    for problem, found in (
        ("there is no weight", set(theirs.values()) - weights.keys()),
        ("there is an unknown weight", weights.keys() - set(theirs.values())),
    ):
        if found:
            raise ValueError(f"{path}: {problem} {min(found)}")
    for name, one in wanted.items():
        given = weights[theirs[name]]
        if one.shape != given.shape:
            shapes = f"{list(given.shape)}, not {list(one.shape)}"
            raise ValueError(f"{path}: {theirs[name]} is of shape {shapes}")
    cast = {name: weights[theirs[name]].to(dtype) for name in wanted}
    module.load_state_dict(cast, assign=True)
    return module.requires_grad_(False).eval()
