"""Random weights for the convolutions and transformers of a tiny checkpoint."""

import math

import torch
from torch import nn

RESIDUAL_SCALE = 0.5  # of branches: what a convolution or attention carries is heard


@torch.no_grad()
def fill_with_noise(model: nn.Module, generator: torch.Generator) -> None:
    """Norms near 1, biases and the shapes of activations near 0, sums of inputs near their size."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("codebooks"):
            parameter.copy_(noise)
        elif parameter.dim() > 1:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        elif name.endswith(("gamma", "scale")):
            parameter.copy_(RESIDUAL_SCALE * (1 + 0.1 * noise))
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + 0.1 * noise)
        else:
            parameter.copy_(0.1 * noise)
