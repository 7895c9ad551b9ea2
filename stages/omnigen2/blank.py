"""Prompts of no meaning, as the language model's stage sends them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

BLANK_LENGTH = 8


def blank_texts(model: str, call: Mapping[str, object]) -> dict[str, npt.NDArray[Any]]:
    """Returns rows of zeros [1, 8, size] and their masks, of a prompt and of a negative one."""
    config = AutoConfig.from_pretrained(model, subfolder="mllm").get_text_config()
    rows = np.zeros((1, BLANK_LENGTH, config.hidden_size), np.float32)
    mask = np.ones((1, BLANK_LENGTH), np.int64)
    return {
        "prompt_embeds": rows,
        "prompt_attention_mask": mask,
        "negative_prompt_embeds": rows,
        "negative_prompt_attention_mask": mask,
    }
