"""M-RoPE positions (time, height, width) of a prompt with images and videos.

As transformers' Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index: text and sound
count up on all three axes, a picture's patches are a grid that starts at the next position, and
what follows it starts one past its largest. The sound of a video counts up from where the video's
grid starts, and what follows both starts one past the largest of their last run of one kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Grid:
    """An image or a video in a prompt: `size` (t, h, w) after merging, at token `offset`.

    `time_step`: positions from one time slice to the next. `sounds`: which of its tokens, counted
    from 0, are the video's own sound; the others are its patches.
    """

    offset: int
    size: tuple[int, int, int]
    time_step: float
    is_video: bool = False
    sounds: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens it takes."""
        t, h, w = self.size
        return t * h * w + len(self.sounds)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Returns the positions of its tokens [3, num_tokens], from where it starts."""
        patches = np.indices(self.size).reshape(3, -1)
        patches[0] = (patches[0] * self.time_step).astype(np.int64)
        if not self.sounds:
            return patches
        positions = np.empty((3, self.num_tokens), np.int64)
        is_sound = self._is_sound()
        positions[:, is_sound] = np.arange(len(self.sounds))
        positions[:, ~is_sound] = patches
        return positions

    @property
    def last_run(self) -> int:
        """How many tokens at its end are of one kind."""
        if not self.sounds:
            return self.num_tokens
        is_sound = self._is_sound()
        others = np.flatnonzero(is_sound != is_sound[-1])
        return self.num_tokens - int(others[-1]) - 1

    def _is_sound(self) -> npt.NDArray[np.bool_]:
        is_sound = np.zeros(self.num_tokens, np.bool_)
        is_sound[list(self.sounds)] = True
        return is_sound


def rope_positions(num_tokens: int, grids: Sequence[Grid]) -> npt.NDArray[np.int64]:
    """Positions int64 [3, num_tokens]; `grids` in the order of their offsets."""
    positions = np.empty((3, num_tokens), np.int64)
    token, following = 0, 0
    for grid in grids:
        num_text = grid.offset - token
        positions[:, token : grid.offset] = np.arange(following, following + num_text)
        start, end = following + num_text, grid.offset + grid.num_tokens
        positions[:, grid.offset : end] = start + grid.positions
        token, following = end, int(positions[:, end - grid.last_run : end].max()) + 1
    positions[:, token:] = np.arange(following, following + num_tokens - token)
    return positions


@dataclass(frozen=True, slots=True)
class VideoIds:
    """The tokens that stand for a video's patches and for its sound."""

    patch: int
    sound: int

    def grid(
        self, ids: Sequence[int], offset: int, size: tuple[int, int, int], time_step: float
    ) -> Grid:
        """The video whose tokens begin at `offset` of a prompt.

        If its sound is heard, the first of them says that sound begins, and the last that it ends.
        """
        if ids[offset] == self.patch:
            return Grid(offset, size, time_step, is_video=True)
        tokens = np.asarray(ids[offset + 1 :])
        is_medium = np.append(np.isin(tokens, (self.patch, self.sound)), False)
        heard = tokens[: int(np.argmin(is_medium))] == self.sound
        sounds = tuple(np.flatnonzero(heard).tolist())
        return Grid(offset + 1, size, time_step, is_video=True, sounds=sounds)
