"""Blocks of all requests' windows in one list, and what the DiT's layers read beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig

from omnistage.stages.vllm.step.transfer import to_device

MAX_BLOCKS = 512  # that one forward has of several windows
NONE = -1  # no neighbour
NORM_EPS = 1e-6

Table = npt.NDArray[np.int64]


class Columns(NamedTuple):
    """The places of those that a list's table has before its codes."""

    position: int = 0
    time: int = 1
    window: int = 2
    left: int = 3
    right: int = 4
    num_frames: int = 5


COLUMNS = Columns()


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks of one request that follow each other: some of its past, then new ones.

    `past` and `state` [blocks, frames, mel] of both. `codes` of their frames, as many as there are:
    the last block may lack some. `first`: the place of the first block in the answer. `time`: which
    one of the evaluations' times. `voice`: what the DiT makes of the speaker, [2, width].
    """

    past: torch.Tensor
    state: torch.Tensor
    codes: Table
    first: int
    time: int
    voice: torch.Tensor

    @property
    def num_past(self) -> int:
        """Blocks that new ones look at."""
        return len(self.past)

    @property
    def num_new(self) -> int:
        """Blocks whose velocity is wanted."""
        return len(self.state)

    @property
    def num_blocks(self) -> int:
        """Returns the number of blocks of both."""
        return self.num_past + self.num_new


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """New blocks first, then each window's nearest past block, then the one before that, and so on.

    A past block is computed as far as others look at it, so those farthest away are dropped first:
    `counts[d]` blocks have at most `d` blocks between them and a new one's left edge. `table`
    [blocks, COLUMNS and codes]: each block's position in its answer, time, window, the places of
    its neighbours in the list, or NONE, how many frames it has, and its codes.
    """

    counts: tuple[int, ...]
    table: Table

    def padded(self, num_blocks: int) -> Table:
        """The table with more blocks, which nobody looks at and which look at nobody."""
        others = np.repeat(self.table[:1], num_blocks - len(self.table), 0)
        others[:, [COLUMNS.left, COLUMNS.right]] = NONE
        return np.concatenate([self.table, others])


@dataclass(frozen=True, slots=True)
class BlockList:
    """A layout on a device, with the blocks' states and the windows' voices [windows, 2, width]."""

    counts: tuple[int, ...]
    state: torch.Tensor
    voices: torch.Tensor
    table: torch.Tensor

    def column(self, place: int) -> torch.Tensor:
        """One of COLUMNS, of all blocks."""
        return self.table[:, place]

    @property
    def codes(self) -> torch.Tensor:
        """[blocks, codes]."""
        return self.table[:, len(COLUMNS) :]


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of times and positions for the layers, computed beforehand.

    `modulations` [times, 6, width] of each layer: shift, scale and gate of its attention, then of
    its MLP. `last` [times, 2, width]: scale and shift of the last norm. `cos` and `sin`
    [positions, frames, head_dim].
    """

    modulations: Sequence[torch.Tensor]
    last: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Returns the bytes of all of them."""
        return sum(one.nbytes for one in (*self.modulations, self.last, self.cos, self.sin))


@dataclass(frozen=True, slots=True)
class Role:
    """The reach of a layer: whether it sees neighbours, and how many blocks behind it."""

    looks_left: bool
    looks_right: bool
    depth: int

    @classmethod
    def of(cls, number: int, config: Qwen2_5OmniDiTConfig) -> "Role":
        """The layer's of that number."""
        looks_left = number in config.look_backward_layers
        looks_right = number in config.look_ahead_layers
        if looks_left and looks_right:
            raise ValueError(f"layer {number} of the DiT looks both ways")
        # Past blocks are needed as long as a layer further on looks back.
        depth = sum(other > number for other in config.look_backward_layers)
        return cls(looks_left, looks_right, depth)


def lay_out(
    windows: Sequence[Window], depth: int, codes_per_block: int, repeats: int
) -> BlockLayout:
    """`depth`: how many past blocks a window may have; `repeats`: frames of a code."""
    sizes = np.array([window.num_blocks for window in windows])
    window_of = np.repeat(np.arange(len(windows)), sizes)
    block = np.concatenate([np.arange(size) for size in sizes])
    told = np.array([(window.num_past, window.first, window.time) for window in windows])
    num_past, first, time = told[window_of].T
    depths = np.maximum(num_past - block, 0)
    order = np.argsort(depths, kind="stable")
    place = np.argsort(order)
    left = np.where(block > 0, np.roll(place, 1), NONE)
    right = np.where(block < sizes[window_of] - 1, np.roll(place, -1), NONE)
    codes = np.concatenate([_codes_of(window, codes_per_block) for window in windows])
    num_frames = repeats * (codes != NONE).sum(1)
    columns = np.stack([first + block, time, window_of, left, right, num_frames], 1)
    table = np.concatenate([columns, np.maximum(codes, 0)], 1)[order]
    counts = tuple(int((depths <= limit).sum()) for limit in range(depth + 1))
    return BlockLayout(counts, table)


def states_of(windows: Sequence[Window]) -> list[torch.Tensor]:
    """The states of all blocks in a layout's order, in parts to be joined."""
    return [*(window.state for window in windows), *_pasts_of(windows)]


def make_block_list(windows: Sequence[Window], layout: BlockLayout) -> BlockList:
    """The windows' blocks on their device."""
    return BlockList(
        counts=layout.counts,
        state=torch.cat(states_of(windows)),
        voices=torch.stack([window.voice for window in windows]),
        table=to_device(layout.table, windows[0].state.device),
    )


def _pasts_of(windows: Sequence[Window]) -> Iterator[torch.Tensor]:
    for distance in range(1, max(window.num_past for window in windows) + 1):
        for window in windows:
            if distance <= window.num_past:
                place = window.num_past - distance
                yield window.past[place : place + 1]


def _codes_of(window: Window, size: int) -> Table:
    """Returns the codes of each block; NONE for each that is missing."""
    codes = np.full(window.num_blocks * size, NONE)
    codes[: len(window.codes)] = window.codes
    return codes.reshape(-1, size)


def batches(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """In order, each of at most MAX_BLOCKS, or of one window."""
    batch: list[Window] = []
    num_blocks = 0
    for window in windows:
        num_blocks += window.num_blocks
        if batch and num_blocks > MAX_BLOCKS:
            yield batch
            batch, num_blocks = [], window.num_blocks
        batch.append(window)
    if batch:
        yield batch
