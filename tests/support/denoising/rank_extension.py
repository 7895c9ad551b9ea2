"""Methods that are mixed into the worker of each rank, as a user's own would be."""

import os
from functools import partial
from typing import Any

import torch


class Extension:
    """What tests want of ranks."""

    rank: int
    device: torch.device
    denoisers: dict[str, Any]
    pipeline: Any

    def num_weights(self) -> int:
        """How many of the denoisers' are here."""
        return sum(
            (one.to_local() if hasattr(one, "to_local") else one).numel()
            for denoiser in self.denoisers.values()
            for one in denoiser.parameters()
        )

    def num_vae_weights(self) -> int:
        """How many of the VAE's are here."""
        return sum(one.numel() for one in self.pipeline.vae.parameters())

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

    def fail_behind_next_call_on(self, rank: int) -> None:
        """Raise on one of them, once, when nobody waits for it any more."""
        if self.rank == rank:
            self.forwards = dict(self._forwards)  # type: ignore[has-type]  # the worker's
            failing = {name: partial(self._fail_behind, one) for name, one in self.forwards.items()}
            self._forwards = failing

    def _fail_behind(self, forward: Any, *args: Any, **kwargs: Any) -> None:
        self._forwards = self.forwards
        forward(*args, **kwargs)
        raise RuntimeError("as it was told")

    def count_tiles(self) -> int:
        """How many tiles were decoded here since this was called first."""
        if not hasattr(self, "num_tiles"):
            self.num_tiles = 0
            self.pipeline.vae.decoder.conv_out.register_forward_hook(self._count)
        return self.num_tiles

    def _count(self, *_: Any) -> None:
        self.num_tiles += 1

    def fail_next_tile_on(self, rank: int) -> None:
        """Raise in the decoder of one of them, once."""
        if self.rank == rank:
            part = self.pipeline.vae.decoder.conv_out
            self.hook = part.register_forward_pre_hook(self._fail_once)

    def _fail_once(self, module: Any, args: Any) -> None:
        self.hook.remove()
        raise RuntimeError("as it was told")

    def run_out_of_memory_on(self, rank: int) -> None:
        """Let one of them have no more memory than it has: on a GPU truly, else by a call."""
        if self.rank != rank:
            return
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            used = torch.cuda.memory_reserved(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(used / total, self.device)
            return
        part = next(next(iter(self.denoisers.values())).children())
        part.register_forward_pre_hook(self._lack_memory)

    def _lack_memory(self, module: Any, args: Any) -> None:
        raise torch.OutOfMemoryError("as it was told")

    def die_in_next_tile_on(self, rank: int) -> None:
        """End the process of one of them in its decoder."""
        if self.rank == rank:
            part = self.pipeline.vae.decoder.conv_out
            part.register_forward_pre_hook(lambda *_: os._exit(3))

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
                denoiser.register_to_config(num_attention_heads=1)
        super().spread()  # type: ignore[misc]  # of the worker that this is mixed into
