"""Reads the weights of a BAGEL checkpoint: `ema.safetensors` and `ae.safetensors`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

from omnistage.stages.bagel.readers import ImageReader, LatentReader, TextReader
from omnistage.stages.bagel.settings import BagelSettings
from omnistage.stages.bagel.transformer import BagelTransformer

WEIGHTS, VAE = "ema.safetensors", "ae.safetensors"
SCALING, SHIFT = 0.3611, 0.1159  # of the VAE's latents, which no file has
TABLES = (".pos_embed",)  # may be missing: the model makes them
# Beginnings of our names, and of the published ones; the first that matches counts.
PUBLISHED = tuple(
    (re.compile(ours), theirs)
    for ours, theirs in (
        (r"layers\.(\d+)\.und\.(\w_\w+)", r"language_model.model.layers.\1.self_attn.\2"),
        (r"layers\.(\d+)\.gen\.(\w_\w+)", r"language_model.model.layers.\1.self_attn.\2_moe_gen"),
        (r"layers\.(\d+)\.und\.(\w+)", r"language_model.model.layers.\1.\2"),
        (r"layers\.(\d+)\.gen\.(\w+)", r"language_model.model.layers.\1.\2_moe_gen"),
        (r"latents\.|(?=llm2vae)", ""),
        (r"lm_head", "language_model.lm_head"),
        (r"seen\.(?=fc)", "connector."),
        (r"seen\.(?=vit)", ""),
        (r"seen\.(?=\w+_embedding)", "vit_model.vision_model.embeddings."),
        (r"seen\.", "vit_model.vision_model."),
        (r"", "language_model.model."),
    )
)


@dataclass(frozen=True, slots=True)
class BagelModules:
    """The parts of a BAGEL pipeline that are in `ema.safetensors`."""

    transformer: BagelTransformer
    text_reader: TextReader
    image_reader: ImageReader
    latent_reader: LatentReader

    @classmethod
    def empty(cls, settings: BagelSettings) -> "BagelModules":
        """Make them without memory for their weights."""
        with init_empty_weights(include_buffers=False):
            transformer = BagelTransformer(settings)
            return cls(
                transformer,
                TextReader(transformer, settings),
                ImageReader(transformer, settings),
                LatentReader(transformer),
            )

    def places(self) -> Iterator[tuple[str, Module, str]]:
        """Yield the published name of each weight and table, its module and its name there."""
        for prefix, owner in (
            ("", self.transformer),
            ("lm_head.", self.text_reader.lm_head),
            ("seen.", self.image_reader.seen),
        ):
            for name in owner.state_dict():
                path, _, last = name.rpartition(".")
                yield published_name(prefix + name), owner.get_submodule(path), last


def published_name(name: str) -> str:
    """Return the name that the published checkpoint has for one of ours."""
    for ours, theirs in PUBLISHED:
        made, is_found = re.subn(f"^(?:{ours.pattern})", theirs, name, count=1)
        if is_found:
            return made
    return name


def read_modules(folder: Path, settings: BagelSettings, dtype: torch.dtype) -> BagelModules:
    """Read a checkpoint's modules; raises ValueError for weights that are missing or too many."""
    modules = BagelModules.empty(settings)
    path = folder / WEIGHTS
    with safe_open(path, "pt") as file:
        left = set(file.keys())
        for published, owner, name in modules.places():
            if published not in left:
                if published.endswith(TABLES):
                    continue
                raise ValueError(f"{path}: there is no weight {published}")
            left.remove(published)
            _put(owner, name, file.get_tensor(published).to(dtype))
    if left:
        raise ValueError(f"{path}: {min(left)} is a weight of no BAGEL")
    for one in (modules.transformer, modules.text_reader, modules.image_reader):
        one.eval()
    return modules


def _put(owner: Module, name: str, value: Tensor) -> None:
    """Put a weight or a table into a module; raises ValueError if it has another shape there."""
    empty = getattr(owner, name)
    if empty.shape != value.shape:
        shapes = f"{list(value.shape)}, not {list(empty.shape)}"
        raise ValueError(f"{WEIGHTS}: {type(owner).__name__}.{name} is of shape {shapes}")
    if isinstance(empty, torch.nn.Parameter):
        value = torch.nn.Parameter(value, requires_grad=False)
    setattr(owner, name, value)


def read_vae(folder: Path, dtype: torch.dtype) -> AutoencoderKL:
    """Read the VAE, whose sizes are those of its weights."""
    stored = load_file(folder / VAE)
    blocks = 1 + max(
        int(found[1]) for name in stored if (found := re.match(r"encoder\.down\.(\d+)\.", name))
    )
    channels = [stored[f"encoder.down.{n}.block.0.conv2.weight"].shape[0] for n in range(blocks)]
    layers = sum(
        bool(re.fullmatch(r"encoder\.down\.0\.block\.\d+\.conv1\.bias", n)) for n in stored
    )
    with init_empty_weights():
        vae = AutoencoderKL(
            block_out_channels=channels,
            layers_per_block=layers,
            latent_channels=stored["decoder.conv_in.weight"].shape[1],
            down_block_types=("DownEncoderBlock2D",) * blocks,
            up_block_types=("UpDecoderBlock2D",) * blocks,
            scaling_factor=SCALING,
            shift_factor=SHIFT,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    weights = convert_ldm_vae_checkpoint(stored, vae.config)
    vae.load_state_dict({name: one.to(dtype) for name, one in weights.items()}, assign=True)
    return vae.requires_grad_(False).eval()
