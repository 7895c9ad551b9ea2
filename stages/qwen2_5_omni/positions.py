"""M-RoPE positions of Qwen2.5-Omni's prompts, the thinker's and the talker's.

As transformers' Qwen2_5OmniPreTrainedModelForConditionalGeneration.get_rope_index. A heard video
has two tokens that open it, of pictures and of sound, at one position, and two that close it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from omnistage.stages.vllm.models.rope import Grid, rope_positions


def prompt_positions(num_tokens: int, grids: Sequence[Grid]) -> npt.NDArray[np.int64]:
    """Positions int64 [3, num_tokens]; `grids` in the order of their offsets."""
    positions = rope_positions(num_tokens, grids)
    for grid in grids:
        if grid.sounds:
            second_opening, second_closing = grid.offset - 1, grid.offset + grid.num_tokens + 1
            positions[:, second_opening:] -= 1
            positions[:, second_closing:] -= 1
    return positions
