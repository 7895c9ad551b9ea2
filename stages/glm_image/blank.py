"""Ids of no meaning, as the stage of image ids sends them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from omnistage.stages.glm_image.grids import PRIOR_SIDE, sides_of


def blank_ids(model: str, call: Mapping[str, object]) -> dict[str, Any]:
    """Returns a prompt, its image's size and ids of zeros [1, n]."""
    height, width = sides_of(call)
    num_ids = (height // PRIOR_SIDE) * (width // PRIOR_SIDE)
    ids = np.zeros((1, num_ids), np.int64)
    return {"prompt": "A warm-up.", "height": height, "width": width, "prior_token_ids": ids}
