"""Weights of modules that vLLM may have cut into shards, one for each tensor-parallel rank."""

import torch
from torch import nn


def take_weight(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    """Load a whole weight: a module of vLLM's takes its shard of it, any other all of it.

    One that is longer than the checkpoint's keeps what it has behind that.
    """
    load = getattr(parameter, "weight_loader", None)
    if load is None:
        parameter.data[: len(weight)].copy_(weight)
    else:
        load(parameter, weight)
