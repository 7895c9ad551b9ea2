"""M-RoPE positions (time, height, width) of a prompt with images and videos.

As transformers' Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index: text and sound
count up on all three axes, a picture's patches are a grid that starts at the next position, and
what follows it starts one past its largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Grid:
    """An image or a video in a prompt: `size` (t, h, w) after merging, at token `offset`.

    `time_step`: positions from one time slice to the next.
    """

    offset: int
    size: tuple[int, int, int]
    time_step: float

    @property
    def num_tokens(self) -> int:
        """Tokens it takes."""
        t, h, w = self.size
        return t * h * w


def rope_positions(num_tokens: int, grids: Sequence[Grid]) -> npt.NDArray[np.int64]:
    """Positions int64 [3, num_tokens]; `grids` in the order of their offsets."""
    positions = np.empty((3, num_tokens), np.int64)
    token, following = 0, 0
    for grid in grids:
        num_text = grid.offset - token
        positions[:, token : grid.offset] = np.arange(following, following + num_text)
        start, end = following + num_text, grid.offset + grid.num_tokens
        patches = np.indices(grid.size).reshape(3, -1)
        patches[0] = (patches[0] * grid.time_step).astype(np.int64)
        positions[:, grid.offset : end] = patches + start
        token, following = end, start + int(patches.max()) + 1
    positions[:, token:] = np.arange(following, following + num_tokens - token)
    return positions
