"""The first thing that a stage does: say what it wants of its device, and end if it cannot fit."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from omnistage.stages.device.memory import GIB

logger = logging.getLogger(__name__)


class DoesNotFit(ValueError):
    """A stage needs more memory than its device has free."""


@dataclass(frozen=True, slots=True)
class Start:
    """A stage before anything of it is loaded.

    `wanted` is in bytes, by what it is for, and never more than what is needed in the end: a stage
    that could work is not refused. `free` is None where it is not known. `advice` says what to
    change if it does not fit.
    """

    stage: str
    device: torch.device
    dtype: torch.dtype
    free: int | None
    advice: str
    wanted: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None  # None: each request has its own, or nothing is drawn

    def check(self, takes_turns: bool = False) -> None:
        """Log one line; raise DoesNotFit unless what is wanted fits, or takes turns there."""
        seed = "no seed" if self.seed is None else f"seed {self.seed}"
        turns = ", not all at once" if takes_turns else ""
        dtype = str(self.dtype).removeprefix("torch.")
        place = f"{self.device}, {dtype}, {seed}"
        logger.info("stage %s: %s; %s%s", self.stage, place, self._memory, turns)
        if self.free is not None and self._num_wanted > self.free and not takes_turns:
            raise DoesNotFit(
                f"stage {self.stage} does not fit on {self.device}: {self._memory}; {self.advice}"
            )

    @property
    def _num_wanted(self) -> int:
        return sum(self.wanted.values())

    @property
    def _memory(self) -> str:
        each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.wanted.items())
        free = "unknown" if self.free is None else f"{self.free / GIB:.2f} GiB"
        return f"at least {self._num_wanted / GIB:.2f} GiB wanted ({each}), {free} free"
