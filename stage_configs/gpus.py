"""The GPUs that this server may use, and those of one stage."""

import os
from collections.abc import Sequence

import pynvml

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """CUDA's names of the GPUs: those the environment allows, else all that the driver knows."""
    allowed = os.environ.get(VISIBLE)
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip()]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def memory_bytes() -> int | None:
    """Returns the memory of the first visible GPU; None where the driver does not report it."""
    gpus = visible_gpus()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        name = gpus[0]
        by_number = name.isdigit()
        find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
        return int(pynvml.nvmlDeviceGetMemoryInfo(find(int(name) if by_number else name)).total)
    except (pynvml.NVMLError, IndexError):
        return None
    finally:
        pynvml.nvmlShutdown()


def gpu_environment(gpus: Sequence[int]) -> dict[str, str]:
    """Returns what makes a process see these of the visible GPUs, in this order, and no others."""
    if not gpus:
        return {}
    visible = visible_gpus()
    return {VISIBLE: ",".join(visible[gpu] for gpu in gpus)}


def used_gpus(gpus: tuple[int, ...]) -> tuple[int, ...]:
    """The GPUs that a stage uses: its own, or the first visible one if its graph names none."""
    return gpus or ((0,) if visible_gpus() else ())
