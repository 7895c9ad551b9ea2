"""The carried state of many streams: two rows of numbers each, of which one is the stream's state.

A decode reads one row of a stream and writes the other. They change sides when the stream
advances, so a decode that failed has changed nothing.
"""

from dataclasses import dataclass

import torch

from omnistage.stages.vocoder.state import StateLayout, StreamBatch


@dataclass(slots=True)
class Slot:
    """One stream: its rows and how far it is."""

    row: int
    next_row: int
    num_frames: int = 0

    def advance(self, num_frames: int) -> None:
        """Go on from what the last decode has written."""
        self.row, self.next_row = self.next_row, self.row
        self.num_frames += num_frames


class Slots:
    """Rows for up to `num_slots` streams, and a spare one for what is decoded for nobody."""

    def __init__(self, layout: StateLayout, num_slots: int, weights: torch.Tensor) -> None:
        """The rows are of the weights' dtype, on their device."""
        self._num_slots = num_slots
        self.spare = 2 * num_slots
        self.rows = weights.new_zeros(self.spare + 1, layout.num_elements)
        self._positions = torch.zeros(self.spare + 1, dtype=torch.int64, device=weights.device)
        self._free = list(reversed(range(num_slots)))

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""
        return len(self._free)

    @property
    def bytes_each(self) -> int:
        """Memory that one stream's state takes."""
        return 2 * self.rows.shape[1] * self.rows.element_size()

    def open(self) -> Slot:
        """A new stream, whose state is zeros."""
        row = self._free.pop()
        self.rows[row].zero_()
        self._positions[row].zero_()
        return Slot(row, row + self._num_slots)

    def close(self, slot: Slot) -> None:
        """Free the rows of a stream."""
        self._free.append(min(slot.row, slot.next_row))

    def load(self, rows: torch.Tensor) -> StreamBatch:
        """Copies of these rows, int64 [B] on the device, for the layers to write to."""
        state = self.rows[rows]
        positions = self._positions[rows]
        started = (positions > 0).to(state.dtype)[:, None, None]
        return StreamBatch(state, positions, started)

    def store(self, rows: torch.Tensor, batch: StreamBatch, num_frames: int) -> None:
        """Keep what the layers have written, `num_frames` further on, in these rows."""
        self.rows[rows] = batch.rows
        self._positions[rows] = batch.positions + num_frames
