"""The device of a pipeline: which it may be, and whether the weights fit there."""

import logging
from typing import Any

import psutil
import torch

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")
GIB = 1 << 30


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


def free_bytes(device: torch.device) -> int:
    """What can still be taken of its memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_fit(sizes: dict[str, int], device: torch.device, is_offloaded: bool) -> None:
    """Say what the weights take, in bytes by component, and what is free.

    Raises ValueError if they do not fit, unless they take turns there.
    """
    wanted, free = sum(sizes.values()), free_bytes(device)
    each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in sizes.items())
    said = f"{wanted / GIB:.2f} GiB wanted ({each}), {free / GIB:.2f} GiB free on {device}"
    logger.info("weights: %s%s", said, ", not all at once" if is_offloaded else "")
    if wanted > free and not is_offloaded:
        raise ValueError(f"the weights do not fit: {said}; try offload: sequential or layerwise")
