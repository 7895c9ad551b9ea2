"""Linear layers in parts, one on each rank, by Diffusers' plan of a class (tensor parallelism).

Layers cut by rows of their weights compute some of the outputs, those after them, cut by columns,
some of the sum: one sum over the ranks makes it whole. Weights are plain tensors, so a call costs
the host nothing else.
"""

from functools import partial
from typing import Any

import torch.distributed as dist
from diffusers.hooks.tensor_parallel import _local_shard, resolve_tp_shard_specs
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import linear

INPUTS = 1  # the axis of a weight [outputs, inputs]


def cut_layers(denoiser: nn.Module, mesh: DeviceMesh) -> None:
    """Leave this rank its part of each layer that the plan names.

    Raises ValueError if heads or widths are no multiples of the number of ranks.
    """
    num = mesh.size()
    heads = getattr(denoiser.config, "num_attention_heads", num)
    if heads % num:
        raise ValueError(f"{num} ranks do not divide {heads} attention heads")
    for path, part in resolve_tp_shard_specs(denoiser, denoiser._tp_plan, num).items():
        if part.dim is None:  # a bias that is added to the whole sum
            continue
        place, _, name = path.rpartition(".")
        layer: Any = denoiser.get_submodule(place)
        whole = getattr(layer, name).detach()
        own = _local_shard(whole, part.dim, part.block_sizes, mesh)
        setattr(layer, name, nn.Parameter(own.clone(), requires_grad=False))
        if name == "weight":
            layer.out_features, layer.in_features = own.shape
            if part.dim == INPUTS:
                layer.forward = partial(_summed, layer, mesh.get_group())


def _summed(layer: nn.Linear, group: dist.ProcessGroup, inputs: Tensor) -> Tensor:
    """The whole outputs [..., out], of this rank's part of the inputs [..., in / ranks]."""
    outputs = linear(inputs, layer.weight)
    dist.all_reduce(outputs, group=group)
    return outputs if layer.bias is None else outputs.add_(layer.bias)
