"""A streaming decoder's options in a graph file, and whether it fits where it is wanted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from omnistage.stages.device.devices import device_of
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.device.memory import free_bytes
from omnistage.stages.device.start import Start

ADVICE = "lower num_slots, take dtype: bfloat16, or a device with more memory"


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """`device` is CUDA where there is one; `load_format: dummy` takes random weights.

    `max_batch`: how many requests are decoded at once; without it, as many as there are.
    `profile_folder`: where traces of the decoder's work are written; without it, none are made.
    """

    num_slots: int = 64
    dtype: str = "float32"
    device: str | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    max_batch: int | None = None
    profile_folder: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what no decoder can be."""
        dtype_of(self.dtype)
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format {self.load_format!r} is none of auto, dummy")
        for name, size in (("num_slots", self.num_slots), ("max_batch", self.max_batch)):
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Returns the dtype of weights and state."""
        return dtype_of(self.dtype)

    @property
    def has_weights(self) -> bool:
        """Returns whether the checkpoint's weights are read."""
        return self.load_format != "dummy"

    def fitting_device(
        self, stage: str, memory: Callable[[torch.dtype, int], Mapping[str, int]]
    ) -> torch.device:
        """Where the stage computes; `memory`: the bytes that so many slots of a dtype want.

        Raises DoesNotFit before anything is loaded.
        """
        device, dtype = device_of(self.device), self.torch_dtype
        wanted = memory(dtype, self.num_slots)
        Start(stage, device, dtype, free_bytes(device), ADVICE, wanted).check()
        return device
