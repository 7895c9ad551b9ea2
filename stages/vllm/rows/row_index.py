"""Index of the row cache: maps blocks of the prefix cache to slots of kept rows."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]  # slot by slot, a place for each position of a block
Flags = npt.NDArray[np.bool_]


class RowIndex:
    """A slot for each block of which rows are kept; the block that was used longest ago goes.

    A slot that was used in this step stays for its length, so that a step writes each place once.
    Whoever opens a slot without a hash holds it until it names or frees it.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.block_size = block_size
        self._num_slots = num_slots
        self._kept = np.zeros((num_slots, block_size), bool)
        self._used_in = np.zeros(num_slots, np.int64)
        self._step = 1
        self._slots: OrderedDict[Hashable, int] = OrderedDict()  # by hash; the last used last
        self._free: list[int] = []
        self._num_begun = 0  # slots that were ever opened

    def __len__(self) -> int:
        return len(self._slots)

    def begin_step(self) -> None:
        """Lets rows go that were used until now."""
        self._step += 1

    def num_covered(self, hashes: Sequence[Hashable], wanted: Flags) -> int:
        """Leading blocks of which all wanted rows [blocks, block size] are kept."""
        blocks = np.flatnonzero(wanted.any(axis=1))
        found = [self._slots.get(hashes[block], -1) for block in blocks.tolist()]
        slots = np.array(found, np.int64)
        is_short = slots < 0
        known = ~is_short
        is_short[known] = (wanted[blocks[known]] & ~self._kept[slots[known]]).any(axis=1)
        short = blocks[is_short]
        return int(short[0]) if len(short) else len(wanted)

    def use(self, hashes: Sequence[Hashable]) -> None:
        """Keep these blocks of one prompt longest, the first of them longer than the others."""
        for block_hash in reversed(hashes):
            slot = self._slots.get(block_hash)
            if slot is not None:
                self._slots.move_to_end(block_hash)
                self._used_in[slot] = self._step

    def places(self, block_hash: Hashable, offsets: npt.NDArray[np.int64]) -> Places:
        """Where the rows at these offsets of a block are, all of which are kept."""
        slot = self._slots[block_hash]
        assert self._kept[slot, offsets].all(), "a row was read that is not kept"
        return slot * self.block_size + offsets

    def open(self, block_hash: Hashable | None) -> int | None:
        """The slot of a block, its own or a new one; none if all of them are in use."""
        slot = None if block_hash is None else self._slots.get(block_hash)
        if slot is None:
            slot = self._new_slot()
            if slot is None:
                return None
            self._kept[slot] = False
            if block_hash is not None:
                self._slots[block_hash] = slot
        if block_hash is not None:
            self._slots.move_to_end(block_hash)
        self._used_in[slot] = self._step
        return slot

    def _new_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._num_begun < self._num_slots:
            self._num_begun += 1
            return self._num_begun - 1
        oldest = next(iter(self._slots.items()), None)
        if oldest is None or self._used_in[oldest[1]] == self._step:
            return None
        del self._slots[oldest[0]]
        return oldest[1]

    def keep(self, slot: int, offsets: npt.NDArray[np.int64]) -> Places:
        """Note that this step's rows at these offsets are kept; -1 where there is one already."""
        places = np.where(self._kept[slot, offsets], -1, slot * self.block_size + offsets)
        self._kept[slot, offsets] = True
        return places

    def keep_one(self, slot: int, offset: int) -> int:
        """The same of one row."""
        if self._kept[slot, offset]:
            return -1
        self._kept[slot, offset] = True
        return slot * self.block_size + offset

    def name(self, slot: int, block_hash: Hashable) -> None:
        """Say of which block a slot is that was opened without a hash.

        It takes the place of another that has none of its rows besides, and is not in use.
        """
        other = self._slots.get(block_hash)
        if other is None:
            self._slots[block_hash] = slot
        elif self._used_in[other] != self._step and (self._kept[slot] >= self._kept[other]).all():
            self._slots[block_hash] = slot
            self._free.append(other)
        else:
            self._free.append(slot)

    def free(self, slot: int) -> None:
        """Give back a slot that was opened without a hash."""
        self._free.append(slot)

    def clear(self) -> None:
        """Forget all blocks; slots without a hash are their holders' to free."""
        self._free.extend(self._slots.values())
        self._slots.clear()
