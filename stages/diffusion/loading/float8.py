"""Denoisers whose products take numbers of eight bits: half the weights' bytes.

What comes out is near what the weights mean, not equal: `make image-speed ARGS="FOLDER
--load-format auto --quantization fp8"` prints how near, and how fast.
"""

import torch
from torch import nn

from omnistage.stages.diffusion.blocks.float8 import Float8Linear
from omnistage.stages.diffusion.loading.components import Parts, repeated_blocks

QUANTIZATIONS = ("fp8",)
ALIGNMENT = 16  # numbers: what the kernels want of a row's and of a column's length
CAPABILITY = (8, 9)  # of the first GPUs that multiply such numbers


def quantize(parts: Parts, device: torch.device) -> None:
    """Put float8 into the denoisers' repeated blocks, on their device; the rest stays as it is.

    Layers stay whose sizes are no multiples of `ALIGNMENT`. Raises ValueError for a GPU without
    such products, and for a denoiser without repeated blocks or without a layer that fits.
    """
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        have, want = (".".join(map(str, one)) for one in (found, CAPABILITY))
        raise ValueError(f"quantization: fp8 needs a GPU of compute capability {want}, not {have}")
    for name, module in parts.dit.items():
        blocks = repeated_blocks(module)
        if not blocks:
            raise ValueError(
                f"quantization: {name} ({type(module).__name__}) has no repeated blocks"
            )
        if not sum(quantize_block(block, device) for block in blocks):
            raise ValueError(
                f"quantization: no linear layer in the blocks of {name} ({type(module).__name__}) "
                f"has sizes that are multiples of {ALIGNMENT}"
            )


def quantize_block(block: nn.Module, device: torch.device) -> int:
    """Put float8 into one block; how many layers that changed."""
    found = [
        (parent, name, child)
        for parent in block.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _fits(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, Float8Linear(child, device))
    return len(found)


def _fits(linear: nn.Linear) -> bool:
    return linear.in_features % ALIGNMENT == 0 and linear.out_features % ALIGNMENT == 0
