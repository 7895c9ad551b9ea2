"""States of no meaning, as the stage of image ids sends them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from omnistage.stage_configs.checkpoint import Checkpoint

BLANK_LENGTH = 8


def blank_states(model: str, call: Mapping[str, object]) -> dict[str, Any]:
    """Return rows of zeros [1, 8, size] and their masks, half of them those of an image's ids."""
    size = Checkpoint(model).config["llm_config"]["text_config"]["hidden_size"]
    rows = np.zeros((1, BLANK_LENGTH, size), np.float32)
    mask = np.ones((1, BLANK_LENGTH), np.int64)
    return {
        "prompt_embeds": rows,
        "prompt_attention_mask": mask,
        "negative_prompt_embeds": rows,
        "negative_prompt_attention_mask": mask,
        "num_image_rows": BLANK_LENGTH // 2,
    }
