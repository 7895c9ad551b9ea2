"""Reading the audio VAE of a checkpoint: its decoder, or its encoder, with plain weights."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from safetensors.torch import load_file
from torch import nn

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.vocoder.checkpoint import find
from omnistage.stages.voxcpm2.audio_vae import VaeDecoder, VaeEncoder
from omnistage.stages.voxcpm2.settings import load_settings

SAFE_FILE, TORCH_FILE = "audiovae.safetensors", "audiovae.pth"
DUMMY_BOUND = 0.03  # its sound then varies, and is not clipped
GAIN, DIRECTION = ".weight_g", ".weight_v"  # of a normalized weight

Tensors = dict[str, torch.Tensor]
Part = TypeVar("Part", bound=nn.Module)


def load_decoder(
    model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
) -> VaeDecoder:
    """The decoder of a checkpoint folder or hub name; without weights, one with dummy weights."""
    decoder = _decoder(model)
    return _filled(decoder, model, "decoder.", has_weights).to(device, dtype)


def load_encoder(model: str, *, has_weights: bool = True) -> VaeEncoder:
    """The encoder, in float32 on the CPU."""
    encoder = VaeEncoder(load_settings(model).audio_vae_config)
    return _filled(encoder, model, "encoder.", has_weights)


def empty_decoder(model: str, dtype: torch.dtype) -> VaeDecoder:
    """The decoder as shapes alone: on the meta device."""
    with torch.device("meta"):
        return _decoder(model).to(dtype).requires_grad_(False)


def _decoder(model: str) -> VaeDecoder:
    settings = load_settings(model)
    return VaeDecoder(settings.audio_vae_config, settings.patch_size)


def _filled(part: Part, model: str, prefix: str, has_weights: bool) -> Part:
    if has_weights:
        stored = read_vae(model)
        own = {k.removeprefix(prefix): one for k, one in stored.items() if k.startswith(prefix)}
        weights = with_plain_weights(own)
        part.load_state_dict({name: weights[name] for name in part.state_dict()})
    else:
        fill_with_dummy_weights(part.named_parameters(), DUMMY_BOUND)
    return part.float().train(False).requires_grad_(False)


def read_vae(model: str) -> Tensors:
    """All tensors of a checkpoint's VAE; raises FileNotFoundError for one without."""
    if (path := find(model, SAFE_FILE)) is not None:
        return load_file(path)
    path = find(model, TORCH_FILE)
    if path is None:
        raise FileNotFoundError(f"{model} has neither {SAFE_FILE} nor {TORCH_FILE}")
    stored = torch.load(path, map_location="cpu", weights_only=True)
    tensors: Tensors = stored.get("state_dict", stored)
    return tensors


def with_plain_weights(stored: Mapping[str, torch.Tensor]) -> Tensors:
    """Each pair of a direction and a gain as the weight that they are."""
    plain = {name: one for name, one in stored.items() if not name.endswith((GAIN, DIRECTION))}
    for name, direction in stored.items():
        if name.endswith(DIRECTION):
            name = name.removesuffix(DIRECTION)
            gain = stored[name + GAIN]
            norm = direction.flatten(1).norm(dim=1).view_as(gain)
            plain[f"{name}.weight"] = direction * (gain / norm)
    return plain
