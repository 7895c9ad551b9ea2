"""Weights of modules that vLLM may have cut into shards, one for each tensor-parallel rank."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

Part = str | int | None
# A checkpoint's names, and the parts of vLLM's joined weights that they are.
JOINED: dict[str, tuple[str, Part]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}


def joined_name(name: str) -> tuple[str, Part]:
    """Return vLLM's name of a checkpoint's weight, and which part of a joined one it is."""
    owner, layer, kind = name.rsplit(".", 2)
    joined, part = JOINED.get(layer, (layer, None))
    return f"{owner}.{joined}.{kind}", part


def weights_below(
    weights: Iterable[tuple[str, torch.Tensor]], prefix: str, without: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield those whose names begin with `prefix`, which they lose, and do not have `without`."""
    for name, weight in weights:
        if name.startswith(prefix) and without not in name:
            yield name.removeprefix(prefix), weight


def take_weight(parameter: nn.Parameter, weight: torch.Tensor, part: Part = None) -> None:
    """Load a whole weight: a module of vLLM's takes its shard of it, any other all of it.

    `part`: of a joined one. One that is longer than the checkpoint's keeps what it has behind that.
    """
    load = getattr(parameter, "weight_loader", None)
    if load is None:
        parameter.data[: len(weight)].copy_(weight)
    elif part is None:
        load(parameter, weight)
    else:
        load(parameter, weight, part)
