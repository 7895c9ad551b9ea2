"""A tiny BAGEL in the published layout, with random weights."""

import re
from pathlib import Path
from types import MappingProxyType

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.bagel.checkpoint.weights import VAE, WEIGHTS, BagelModules
from omnistage.stages.bagel.settings import MARKS, BagelSettings
from omnistage.stages.checkpoint.files import write_json, write_tokenizer
from omnistage.stages.checkpoint.random_weights import let_sentences_end
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

LATENT_CHANNELS, VAE_CHANNELS = 4, 32
TEXT = {
    "model_type": "qwen2",
    "hidden_size": 64,  # two heads of 32: vLLM's attention on a CPU knows none smaller
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "qk_norm": True,
    "layer_module": "Qwen2MoTDecoderLayer",
    "tie_word_embeddings": False,
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,  # one more than there are, as published
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 112,
    "patch_size": 14,
}
CONTEXT_SCALE = 2.0  # a word follows what is before it, and not its last word alone
SIDES = {"max_latent_size": 8, "vit_max_num_patch_per_side": 8}  # images of 128 and of 112 pixels


def write_tiny_bagel(folder: Path, seed: int = 0, more: JsonMap = MappingProxyType({})) -> None:
    """Write the checkpoint of this seed into a folder.

    `more`: what its language model has other than `TEXT`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer)
    tokenizer.tokenizer.model.save(str(folder))  # vocab.json and merges.txt
    text = {**TEXT, "vocab_size": tokenizer.padded_size, **more}
    write_json(folder / "llm_config.json", text)
    write_json(folder / "vit_config.json", VISION)
    config = {
        "architectures": ["BagelForConditionalGeneration"],
        "model_type": "bagel",
        "llm_config": text,
        "vit_config": VISION,
        "vae_config": {"downsample": 8, "z_channels": LATENT_CHANNELS},
        "latent_patch_size": 2,
        "connector_act": "gelu_pytorch_tanh",
        "interpolate_pos": False,
        **SIDES,
    }
    write_json(folder / "config.json", config)
    random = torch.Generator().manual_seed(seed)
    start, end = map(tokenizer.id, MARKS[2:])
    weights = _language_weights(BagelSettings.read(folder, (start, end)), random)
    head, embedding = (
        weights[f"language_model.{name}.weight"] for name in ("lm_head", "model.embed_tokens")
    )
    let_sentences_end(head, embedding, tokenizer.id(MARKS[1]))
    save_file(weights, folder / WEIGHTS)
    save_file(_vae_weights(random), folder / VAE)


def _language_weights(settings: BagelSettings, random: torch.Generator) -> dict[str, Tensor]:
    """Return the weights of `ema.safetensors`."""
    made = {}
    for published, owner, name in BagelModules.empty(settings).places():
        old = getattr(owner, name)
        made[published] = old.clone() if name == "pos_embed" else _noise(published, old, random)
    return made


def _noise(name: str, like: Tensor, random: torch.Generator) -> Tensor:
    """Return a weight that keeps the size of what goes through it."""
    if like.ndim == 1:
        is_scale = name.endswith("norm.weight") or "norm" in name.rsplit(".", 2)[1]
        if is_scale and name.endswith("weight"):
            return torch.rand(like.shape, generator=random) + 0.5
        return 0.1 * torch.randn(like.shape, generator=random)
    is_of_words = "embed_tokens" in name or "lm_head" in name
    scale = 1.0 if is_of_words else like[0].numel() ** -0.5
    scale *= CONTEXT_SCALE if "o_proj." in name else 1.0
    return scale * torch.randn(like.shape, generator=random)


def _vae_weights(random: torch.Generator) -> dict[str, Tensor]:
    """Return the weights of `ae.safetensors`, by the names of the first latent diffusion models."""
    vae = AutoencoderKL(
        block_out_channels=(VAE_CHANNELS,) * 4,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    made = {}
    for name, weight in vae.state_dict().items():
        noise = _noise(name, weight, random)
        is_linear = "attentions" in name and noise.ndim == 2
        made[_ldm_name(name)] = noise[..., None, None] if is_linear else noise
    return made


def _ldm_name(name: str) -> str:
    """Return the name that the first latent diffusion models have for a weight of Diffusers'."""
    for ours, theirs in (
        (r"up_blocks\.(\d+)", lambda found: f"up.{3 - int(found[1])}"),
        (r"down_blocks", "down"),
        (r"mid_block\.resnets\.(\d+)", lambda found: f"mid.block_{int(found[1]) + 1}"),
        (r"mid_block\.attentions\.0", "mid.attn_1"),
        (r"resnets", "block"),
        (r"(up|down)samplers\.0", r"\1sample"),
        (r"conv_norm_out", "norm_out"),
        (r"conv_shortcut", "nin_shortcut"),
        (r"group_norm", "norm"),
        (r"to_out\.0", "proj_out"),
        (r"to_([qkv])", r"\1"),
    ):
        name = re.sub(ours, theirs, name)
    return name
