"""A prompt of no meaning, as the text encoder stage sends one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

BLANK_LENGTH = 8


def blank_embeds(model: str, call: Mapping[str, object]) -> dict[str, npt.NDArray[Any]]:
    """Returns rows of zeros [1, 8, size], and their mask."""
    config = AutoConfig.from_pretrained(model, subfolder="text_encoder")
    size = config.get_text_config().hidden_size
    return {
        "prompt_embeds": np.zeros((1, BLANK_LENGTH, size), np.float32),
        "prompt_embeds_mask": np.ones((1, BLANK_LENGTH), np.int64),
    }
