"""Where the carried state of one stream lies: one row of numbers, cut into regions."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Region:
    """A part of each state row that one layer owns."""

    offset: int
    shape: tuple[int, ...]

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns its view into rows [B, num_elements]: [B, *shape]; writing to it writes the
        rows.
        """
        end = self.offset + math.prod(self.shape)
        return rows[:, self.offset : end].view(len(rows), *self.shape)


class StateLayout:
    """Gives each layer its region.

    One row a stream makes loading, storing and resetting a stream one kernel each.
    """

    def __init__(self) -> None:
        self.num_elements = 0

    def reserve(self, *shape: int) -> Region:
        """The next free region of this shape."""
        region = Region(self.num_elements, shape)
        self.num_elements += math.prod(shape)
        return region


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The streams of one batch, for the layers."""

    rows: torch.Tensor  # [B, num_elements], updated in place
    positions: torch.Tensor  # int64 [B], frames decoded before this chunk
    started: torch.Tensor  # [B, 1, 1], 0 where this chunk is the stream's first, else 1
