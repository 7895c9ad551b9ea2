"""Weights of audio as training keeps them, made those of plain layers."""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

EPS = 1e-4
# Sizes and directions of weights, as torch has written them before and since 2.0.
SIZES = ("weight_g", "parametrizations.weight.original0")
DIRECTIONS = ("weight_v", "parametrizations.weight.original1")
GAIN = "learnable_gain"


def plain_audio_vae(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of `AudioVae`: normed, and the last ones with their gain."""
    made = {
        name: _normed(one) if one.ndim == 3 and name.endswith(".weight") else one
        for name, one in weights.items()
        if not name.endswith(GAIN)
    }
    for part in ("encoder", "decoder"):
        name = f"{part}.conv_out.weight"
        made[name] = made[name] * (weights[f"{part}.{GAIN}"].float() + 1)
    return made


def _normed(weight: Tensor) -> Tensor:
    """Return a weight whose rows are of length 1."""
    weight = weight.float()
    root = math.sqrt(weight[0].numel())
    lengths = torch.linalg.vector_norm(weight, dim=(1, 2), keepdim=True)
    return weight / (EPS + lengths / root) / root


def plain_vocoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of `Vocoder`: sizes times directions; its filters are no weights."""
    made = {}
    for name, one in weights.items():
        if name.endswith(SIZES):
            owner = re.sub("|".join(map(re.escape, SIZES)), "", name)
            direction = next(weights[owner + end] for end in DIRECTIONS if owner + end in weights)
            made[f"{owner}weight"] = torch._weight_norm(direction.float(), one.float(), 0)
        elif not name.endswith((*DIRECTIONS, ".filter")):
            made[name] = one
    return made


def rates_of(weights: Mapping[str, Tensor]) -> list[int]:
    """Return the samples that each level of a vocoder makes of one: half of its layer's width."""
    found = sorted(
        (int(match[1]), one.shape[2] // 2)
        for name, one in weights.items()
        if (match := re.fullmatch(r"ups\.(\d+)\.0\.weight", name))
    )
    return [rate for _, rate in found]
