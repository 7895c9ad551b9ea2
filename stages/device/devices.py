"""The device of a stage's model: which it may be."""

from typing import Any

import torch

DEVICES = ("cpu", "cuda")


def device_of(name: Any) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`; None: CUDA if it is there. Raises ValueError."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = str(name).partition(":")
    if kind not in DEVICES or (number and not (kind == "cuda" and number.isdecimal())):
        raise ValueError(f"device {name!r} is none of {', '.join(DEVICES)}, cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise ValueError(f"device {name!r} is not there: CUDA has {count} devices here")
    return torch.device("cuda", int(number or 0))
