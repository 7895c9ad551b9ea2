"""BAGEL's own code, recorded, and the calls and requests that must equal it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from references.bagel_inputs import DRAWINGS, MAX_THINK_TOKENS, Drawing, hash_of, images_of
from safetensors import safe_open

RECORDED = Path(__file__).parent.parent / "references" / "bagel.safetensors"


class RecordedDrawings:
    """The recorded drawings of a checkpoint; another one is an AssertionError."""

    def __init__(self, folder: Path) -> None:
        with safe_open(RECORDED, "pt") as file:
            assert file.metadata()["checkpoint"] == hash_of(folder), (
                "record tests/references/bagel.py"
            )
            self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    @property
    def table(self) -> torch.Tensor:
        """Return the table of places [64, 64] of their code."""
        table: torch.Tensor = self._tensors["table"]
        return table

    def pixels(self, name: str) -> npt.NDArray[np.uint8]:
        """Return an image [height, width, 3]."""
        pixels: npt.NDArray[np.uint8] = self._tensors[f"{name}.pixels"].numpy()
        return pixels

    def thought(self, name: str) -> str:
        """Return a thought; "" without one."""
        return bytes(self._tensors[f"{name}.thought"].tolist()).decode()


def extra_of(drawing: Drawing) -> dict[str, Any]:
    """Return the arguments of a drawing's call that are no fields of a request."""
    thinks = {"think": True, "max_think_tokens": MAX_THINK_TOKENS} if drawing.think else {}
    return {"image_guidance_scale": drawing.scales[1], **thinks, **drawing.more}


def call_of(name: str) -> dict[str, Any]:
    """Return the arguments of the pipeline's call for a drawing."""
    drawing = DRAWINGS[name]
    height, width = drawing.size or (None, None)
    return {
        "prompt": drawing.prompt,
        "image": images_of(drawing) or None,
        "height": height,
        "width": width,
        "num_inference_steps": drawing.num_steps,
        "guidance_scale": drawing.scales[0],
        "generator": torch.Generator().manual_seed(drawing.seed),
        "output_type": "np",
        **extra_of(drawing),
    }
