"""A denoiser's repeated blocks, compiled by torch: one code for all of them.

What is compiled is a block's forward, not its call: hooks that are put onto a block later, such as
a step cache's, run around the compiled code. Inside of it they would be a code for each block.
"""

import torch
from torch import nn

MARK = "_is_compiled"  # an attribute of a compiled block


def compile_forward(block: nn.Module) -> None:
    """At its first use, for any sizes. Once: a compiled block stays as it is."""
    if is_compiled(block):
        return
    # Torch keeps eight codes of a block. Sizes known one by one would fill them, and what came
    # after them would not run compiled.
    block.forward = torch.compile(block.forward, dynamic=True)
    setattr(block, MARK, True)


def undo(block: nn.Module) -> None:
    """Let a compiled block that has no hooks run as its class says."""
    del block.forward
    delattr(block, MARK)


def is_compiled(module: nn.Module) -> bool:
    """Returns whether it runs as one compiled function: by us, or by its pipeline's own
    `compile()`.
    """
    return getattr(module, MARK, False) or module._compiled_call_impl is not None
