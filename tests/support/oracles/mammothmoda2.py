"""What MammothModa2's own code made of the tiny checkpoint, as it was recorded."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from references.mammothmoda2_drawings import checkpoint_hash
from safetensors import safe_open
from safetensors.numpy import load_file

RECORDED = Path(__file__).parents[2] / "references" / "mammothmoda2.safetensors"


@dataclass(frozen=True, slots=True)
class Recorded:
    """By the prompts of drawings: ids [n] that are read and made, and images [height, width, 3]; by
    the names of questions: the ids [n] of their answers.
    """

    found: dict[str, npt.NDArray[Any]]

    def of(self, prompt: str, what: str) -> npt.NDArray[Any]:
        """Return a drawing's `prompt`, `ids` or `image`, or a question's `answer`."""
        return self.found[f"{prompt}/{what}"]

    def __call__(self, *, prompt: str, **_: Any) -> Any:
        """Return a recorded image as a pipeline does."""
        return SimpleNamespace(images=self.of(prompt, "image")[None].astype(np.float64) / 255)


def recorded(checkpoint: Path) -> Recorded:
    """Return what was recorded of a checkpoint, which must be the same."""
    with safe_open(RECORDED, "np") as file:
        metadata = file.metadata()
    assert metadata["checkpoint"] == checkpoint_hash(checkpoint), (
        "the recordings are of another checkpoint: record again"
    )
    return Recorded(load_file(RECORDED))
