"""What OmniGen2's own code made of the tiny checkpoint, as it was recorded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from references.omnigen2_drawings import DRAWINGS, checkpoint_hash
from safetensors import safe_open
from safetensors.numpy import load_file

RECORDED = Path(__file__).parents[2] / "references" / "omnigen2.safetensors"
CHAT = "chat: "
Pictures = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Recorded:
    """By the names of drawings, images [n, height, width, 3]; by those of chats, texts, too."""

    drawings: dict[str, Pictures]
    texts: dict[str, str]
    chats: dict[str, Pictures]  # of those that are answered by a picture


def recorded(checkpoint: Path) -> Recorded:
    """Return what was recorded of a checkpoint, which must be the same."""
    with safe_open(RECORDED, "np") as file:
        metadata = file.metadata()
    assert metadata["checkpoint"] == checkpoint_hash(checkpoint), (
        "the recordings are of another checkpoint: record again"
    )
    found = load_file(RECORDED)
    chats = {k.removeprefix(CHAT): one for k, one in found.items() if k.startswith(CHAT)}
    drawings = {one.name: found[one.name] for one in DRAWINGS}
    return Recorded(drawings, json.loads(metadata["texts"]), chats)


def bare_omnigen2(folder: Path) -> Any:
    """Return our pipeline of a folder, in this process."""
    from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline

    pipeline = OmniGen2Pipeline.from_pretrained(folder, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
