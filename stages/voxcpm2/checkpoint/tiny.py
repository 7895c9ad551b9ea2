"""Writes a complete VoxCPM2 checkpoint of about two megabytes, with random weights."""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.voxcpm2.audio_vae import VaeDecoder, VaeEncoder
from omnistage.stages.voxcpm2.checkpoint.tiny_config import make_config
from omnistage.stages.voxcpm2.checkpoint.tiny_tokenizer import make_tokenizer, tokenizer_config
from omnistage.stages.voxcpm2.checkpoint.weight_shapes import shapes
from omnistage.stages.voxcpm2.settings import settings_of
from omnistage.stages.voxcpm2.vae_weights import DIRECTION, GAIN, TORCH_FILE

# Of what a layer reads, and of what it adds. A patch depends on those before it through the flow:
# with larger gains there, roundings would grow from patch to patch until nothing could be compared.
_GAIN, _OUTPUT_GAIN, _FLOW_GAIN = 1.5, 1.0, 0.9
_TABLES = ("embed_tokens", "special_token")
_GO_ON = 0.07  # how much the head of the stop predictor is for going on: speech ends now and then
_BRANCH = 0.5  # of the VAE's residuals, so that sums stay in bounds
_LOUDNESS = 0.1  # of the last convolution: the sound is not clipped
_UNUSED = ("fc_mu", "fc_logvar")  # a checkpoint has variances, too, which nobody reads

Tensors = dict[str, torch.Tensor]


def write(folder: Path, seed: int) -> None:
    """Write the checkpoint of this seed into a folder, in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config()
    write_json(folder / "config.json", config)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    settings = settings_of(config)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: _noise(name, torch.randn(shape, generator=generator))
        for name, shape in shapes(settings)
    }
    weights["stop_head.weight"][0] += _GO_ON
    rounded = {name: weight.to(torch.bfloat16).float() for name, weight in weights.items()}
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    vae = settings.audio_vae_config
    parts = {"encoder": VaeEncoder(vae), "decoder": VaeDecoder(vae, settings.patch_size)}
    state: Tensors = {}
    for name, part in parts.items():
        _fill_vae(part, generator)
        state |= {f"{name}.{key}": one for key, one in _normalized(part).items()}
    means = {name: one for name, one in state.items() if _UNUSED[0] in name}
    state |= {name.replace(*_UNUSED): one.clone() for name, one in means.items()}
    if vae.sr_bin_boundaries is not None:
        edges = torch.tensor(vae.sr_bin_boundaries, dtype=torch.int32)
        state["decoder.sr_bin_boundaries"] = edges
    torch.save({"state_dict": state}, folder / TORCH_FILE)


def _noise(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Norms near 1, biases near 0, tables of unit variance; the rest by what it sums over."""
    if name.endswith(("norm.weight", "layernorm.weight")):
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if any(part in name for part in _TABLES):
        return noise
    gain = _OUTPUT_GAIN if "o_proj" in name or "down_proj" in name else _GAIN
    if name.startswith("feat_"):
        gain = _FLOW_GAIN
    return noise * (gain / math.sqrt(noise[0].numel()))


@torch.no_grad()
def _fill_vae(part: nn.Module, generator: torch.Generator) -> None:
    for name, parameter in part.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("alpha", "scale_embed.weight")):
            parameter.copy_(1 + 0.1 * noise)
        elif parameter.dim() == 3:
            is_branch = name.endswith("block.3.weight")
            scale = _BRANCH if is_branch else 1.0
            parameter.copy_(scale * noise / math.sqrt(parameter[0].numel()))
        else:
            parameter.copy_(0.1 * noise)
    if isinstance(part, VaeDecoder):
        last = part.model[-1]
        assert isinstance(last, nn.Conv1d)
        last.weight *= _LOUDNESS


def _normalized(part: nn.Module) -> Tensors:
    """Return a part's weights as a checkpoint has them: convolutions by a gain and a direction."""
    state: Tensors = {}
    for name, weight in part.state_dict().items():
        if weight.dim() == 3 and name.endswith(".weight"):
            place = name.removesuffix(".weight")
            state[place + GAIN] = weight.flatten(1).norm(dim=1)[:, None, None].clone()
            state[place + DIRECTION] = weight.clone()
        else:
            state[name] = weight.clone()
    return state
