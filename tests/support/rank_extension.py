"""Methods that are mixed into the worker of each rank, as a user's own would be."""

import os
from typing import Any

import torch


class Extension:
    """What tests want of ranks."""

    rank: int
    denoisers: dict[str, Any]

    def num_weights(self) -> int:
        """How many of the denoisers' are here."""
        return sum(
            (one.to_local() if hasattr(one, "to_local") else one).numel()
            for denoiser in self.denoisers.values()
            for one in denoiser.parameters()
        )

    def process(self) -> int:
        """The rank's."""
        return os.getpid()

    def fail_on(self, rank: int) -> str:
        """Raise on one of them."""
        if self.rank == rank:
            raise RuntimeError("as it was told")
        return "fine"

    def asleep(self) -> list[str]:
        """The parts of a rank other than 0 that sleep."""
        found: list[str] = self._own_weights.asleep  # type: ignore[attr-defined]  # the worker's
        return found

    def one(self) -> torch.Tensor:
        """A tensor, which is sent."""
        return torch.ones(1)

    def sparse(self) -> torch.Tensor:
        """One that cannot be sent: its values are no bytes in a row."""
        return torch.eye(2).to_sparse()

    def fail_next_call_on(self, rank: int) -> None:
        """Raise in the forward of one of them."""
        if self.rank != rank:
            return
        for denoiser in self.denoisers.values():
            next(denoiser.children()).register_forward_pre_hook(self._fail)

    def _fail(self, module: Any, args: Any) -> None:
        raise RuntimeError("as it was told")


class Forgetful(Extension):
    """Does not tell attention of the ranks, as a processor of Diffusers might not ask."""

    def spread(self) -> None:
        """As it is, but for attention."""
        super().spread()  # type: ignore[misc]  # of the worker that this is mixed into
        for denoiser in self.denoisers.values():
            for part in denoiser.modules():
                processor: Any = getattr(part, "processor", None)
                if hasattr(processor, "_parallel_config"):
                    processor._parallel_config = None


class Unwilling(Extension):
    """Cannot start on the second rank."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.rank == 1:
            raise RuntimeError("not today")


class Incapable(Extension):
    """Cannot spread a denoiser on the second rank, when the other one has begun to."""

    def spread(self) -> None:
        """As it is, but for the second rank."""
        if self.rank == 1:
            for denoiser in self.denoisers.values():
                denoiser.enable_parallelism = self._refuse
        super().spread()  # type: ignore[misc]  # of the worker that this is mixed into

    def _refuse(self, config: Any) -> None:
        raise RuntimeError("not this one")
