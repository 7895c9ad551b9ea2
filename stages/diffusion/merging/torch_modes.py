"""Modes of torch that belong to a thread, so that requests which share one would mix them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class TorchModes:
    """Gradients and autocast. Equal for calls that may share a forward."""

    has_grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    has_autocast_cache: bool

    @classmethod
    def now(cls) -> "TorchModes":
        """This thread's."""
        return cls(
            torch.is_grad_enabled(),
            tuple(
                (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in DEVICE_TYPES
            ),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, they are this thread's."""
        before = TorchModes.now()
        self.set()
        try:
            yield
        finally:
            before.set()

    def set(self) -> None:
        """Make them this thread's."""
        torch.set_grad_enabled(self.has_grad)
        for device, (is_enabled, dtype) in zip(DEVICE_TYPES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.has_autocast_cache)


@contextmanager
def for_any_mode() -> Iterator[None]:
    """Without gradients, yet outside of inference mode.

    Tensors that are made here may be written to in any mode; DTensors can be detached only here.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield
