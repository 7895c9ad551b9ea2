"""Tiny pipelines with ControlNets, each part in a folder of its own."""

from pathlib import Path
from typing import Any

import diffusers
import torch
from support.tiny_pipelines import quiet
from support.tiny_pipelines.build import build

from omnistage.stages.diffusion.controlnets import FORMS


def without_controls(name: str) -> Any:
    for form in reversed(FORMS):
        name = name.replace(form, "")
    return getattr(diffusers, name)


def written(name: str, folder: Path) -> tuple[Any, Path, Path]:
    """Return a pipeline with a ControlNet, and the folders of both parts of it."""
    bare = build(getattr(diffusers, name))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for weight in bare.controlnet.parameters():
            if not weight.any():  # a new one adds nothing
                torch.nn.init.normal_(weight, std=0.3)
        if name.startswith("StableDiffusion3"):
            # Its control images are encoded with noise of torch's own generator: here with none.
            last = bare.vae.quant_conv or bare.vae.encoder.conv_out
            half = len(last.bias) // 2
            last.weight[half:], last.bias[half:] = 0, -30
    parts = {one: part for one, part in bare.components.items() if one != "controlnet"}
    model, net = folder / "model", folder / "net"
    without_controls(name)(**parts).save_pretrained(model)
    bare.controlnet.save_pretrained(net)
    return bare, model, net


def with_second(bare: Any, folder: Path) -> tuple[Path, Any]:
    """Write another ControlNet; returns its folder, and the pipeline with both."""
    second = type(bare.controlnet).from_config(bare.controlnet.config)
    second.load_state_dict(
        {name: 1.5 * weight for name, weight in bare.controlnet.state_dict().items()}
    )
    second.eval().save_pretrained(folder)
    both = {**bare.components, "controlnet": [bare.controlnet, second]}
    return folder, quiet(type(bare)(**both))
