"""The dtypes that a graph file may name for a stage of our own engines."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name; raises ValueError."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is none of {', '.join(DTYPES)}")
    return DTYPES[name]
