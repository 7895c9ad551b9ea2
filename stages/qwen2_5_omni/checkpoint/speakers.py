"""spk_dict.pt: each speaker's text token, its vector and a mel spectrogram of its voice."""

from pathlib import Path
from typing import Any

import torch

SPEAKERS = ("Chelsie", "Ethan")
FILE = "spk_dict.pt"
MEL_SIZE = 80


def make_speakers(first_token: int, size: int, num_frames: int, seed: int) -> dict[str, Any]:
    """Random voices, whose tokens follow each other; `size` is that of their vectors."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: {
            "bos_token": token,
            "cond": torch.randn(1, size, generator=generator),
            "ref_mel": torch.randn(1, num_frames, MEL_SIZE, generator=generator),
        }
        for token, name in enumerate(SPEAKERS, first_token)
    }


def write_speakers(folder: Path, speakers: dict[str, object]) -> None:
    """Beside the weights, where transformers looks for it."""
    torch.save(speakers, folder / FILE)
