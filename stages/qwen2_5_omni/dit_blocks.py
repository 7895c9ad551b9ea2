"""Blocks of all requests' windows in one list: what the DiT's layers compute."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

NONE = -1  # no neighbour


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks of one request that follow each other: some of its past, then new ones.

    `state` [blocks, frames, mel] of them all. `codes` of their frames, as many as there are: the
    last block may lack some. `first`: the place of the first block in the answer. `time`: which
    one of the evaluations' times. `voice`: what the DiT makes of the speaker, [2, width].
    """

    state: torch.Tensor
    codes: npt.NDArray[np.int64]
    first: int
    num_past: int
    time: int
    voice: torch.Tensor

    @property
    def num_new(self) -> int:
        """Blocks whose velocity is wanted."""
        return len(self.state) - self.num_past


@dataclass(frozen=True, slots=True)
class BlockList:
    """New blocks first, then each window's nearest past block, then the one before that, and so on.

    A past block is computed as far as others look at it, so those farthest away are dropped first:
    `counts[d]` blocks have at most `d` blocks between them and a new one's left edge. `left` and
    `right` are the neighbours' places in the list (any place, where `sees_*` says that there is
    none).
    """

    counts: tuple[int, ...]
    state: torch.Tensor
    codes: torch.Tensor
    positions: torch.Tensor
    times: torch.Tensor
    voices: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    sees_self: torch.Tensor  # [blocks * 2, 1, 1, frames], for both rows of guidance
    sees_left: torch.Tensor  # [blocks * 2, 1, 1, 2 * frames]: the left block's, then its own
    sees_right: torch.Tensor  # its own, then the right block's


def make_block_list(windows: Sequence[Window], depth: int, codes_per_block: int) -> BlockList:
    """`depth`: how many past blocks a window may have."""
    sizes = np.array([len(window.state) for window in windows])
    window_of = np.repeat(np.arange(len(windows)), sizes)
    block = np.concatenate([np.arange(size) for size in sizes])
    num_past, first, time = (
        np.array([getattr(window, name) for window in windows])[window_of]
        for name in ("num_past", "first", "time")
    )
    depths = np.maximum(num_past - block, 0)
    order = np.argsort(depths, kind="stable")
    place = np.argsort(order)
    left = np.where(block > 0, np.roll(place, 1), NONE)
    right = np.where(block < sizes[window_of] - 1, np.roll(place, -1), NONE)
    codes = np.concatenate([_codes_of(window, codes_per_block) for window in windows])
    columns = np.stack([np.arange(len(block)), first + block, time, window_of, left, right], 1)
    table = torch.from_numpy(np.concatenate([columns, codes], 1)[order])
    table = table.to(windows[0].state.device)
    source, positions, times, owners, to_left, to_right = table[:, :6].unbind(1)
    states = torch.cat([window.state for window in windows])
    is_frame = (table[:, 6:] >= 0).repeat_interleave(states.shape[1] // codes_per_block, 1)
    is_left = is_frame[to_left] & (to_left >= 0)[:, None]
    is_right = is_frame[to_right] & (to_right >= 0)[:, None]
    return BlockList(
        counts=tuple(int((depths <= limit).sum()) for limit in range(depth + 1)),
        state=states[source],
        codes=table[:, 6:].clamp(min=0),
        positions=positions,
        times=times,
        voices=torch.stack([window.voice for window in windows])[owners],
        left=to_left.clamp(min=0),
        right=to_right.clamp(min=0),
        sees_self=_mask(is_frame),
        sees_left=_mask(torch.cat([is_left, is_frame], 1)),
        sees_right=_mask(torch.cat([is_frame, is_right], 1)),
    )


def _codes_of(window: Window, size: int) -> npt.NDArray[np.int64]:
    """Those of each block; NONE for each that is missing."""
    codes = np.full(len(window.state) * size, NONE)
    codes[: len(window.codes)] = window.codes
    return codes.reshape(-1, size)


def _mask(sees: torch.Tensor) -> torch.Tensor:
    return sees[:, None, None].repeat_interleave(2, 0)
