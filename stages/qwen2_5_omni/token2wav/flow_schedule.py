"""Schedules an answer's blocks that are solved together, and frames that are decoded together.

Both depend on places in the answer alone, and never on how its codes arrive.
"""

from dataclasses import dataclass

WHOLE = 1 << 30  # more blocks than any answer has


@dataclass(frozen=True, slots=True)
class Ramp:
    """An answer is cut into chunks of these many blocks; the last size goes on for ever."""

    sizes: tuple[int, ...]

    def end_after(self, num_blocks: int) -> int:
        """The first end of a chunk that comes after so many blocks."""
        end = 0
        for size in self.sizes:
            end += size
            if end > num_blocks:
                return end
        steady = self.sizes[-1]
        return end + ((num_blocks - end) // steady + 1) * steady


@dataclass(frozen=True, slots=True)
class Schedule:
    """How an answer is cut.

    `chunks`: blocks that are solved together, with `ahead` blocks after them. `windows`: blocks
    whose frames the vocoder gets, with `context` frames to either side that it decodes again.
    """

    chunks: Ramp
    ahead: int
    windows: Ramp
    context: int

    @classmethod
    def streamed(cls, sizes: tuple[int, ...], ahead: int, context: int) -> "Schedule":
        """Sound leaves with each chunk."""
        return cls(Ramp(sizes), ahead, Ramp(sizes), context)

    @classmethod
    def whole(cls, window: int, context: int) -> "Schedule":
        """One chunk has all blocks; the vocoder's windows only bound its memory."""
        return cls(Ramp((WHOLE,)), 0, Ramp((window,)), context)

    @property
    def longest_chunk(self) -> int:
        """Returns the blocks of the longest chunk with those ahead, as an answer's number is
        unknown.
        """
        return max((size for size in self.chunks.sizes if size < WHOLE), default=1) + self.ahead

    def window_after(self, num_blocks: int, block_frames: int) -> int:
        """The block at which the next window ends: the first one from which sound leaves."""
        end = self.windows.end_after(num_blocks)
        while end * block_frames <= self.context:
            end = self.windows.end_after(end)
        return end

    def window_lengths(self, block_frames: int) -> set[int]:
        """How many frames an answer's windows have, but for the last of them."""
        lengths: set[int] = set()
        num_blocks = num_sent = 0
        is_steady = False
        while not is_steady:
            is_steady = num_blocks >= sum(self.windows.sizes) and num_sent >= self.context
            start = max(num_sent - self.context, 0)
            num_blocks = self.window_after(num_blocks, block_frames)
            lengths.add(num_blocks * block_frames - start)
            num_sent = num_blocks * block_frames - self.context
        return lengths
