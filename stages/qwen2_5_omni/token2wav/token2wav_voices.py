"""The speakers of a checkpoint, as token2wav knows them: a vector and a mel spectrogram each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FILE = "spk_dict.pt"


@dataclass(frozen=True, slots=True)
class Speaker:
    """`vector` [1, size] and `mel` [1, frames, mel]."""

    vector: torch.Tensor
    mel: torch.Tensor


def read_speakers(file: Path) -> dict[str, Speaker]:
    """Returns the speakers of a spk_dict.pt by name."""
    stored: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return {name: Speaker(one["cond"], one["ref_mel"]) for name, one in stored.items()}


def name_of(speaker: str | None, names: Iterable[str]) -> str:
    """The name in this case or another; nobody is the first by name. Raises ValueError."""
    known = {name.lower(): name for name in sorted(names)}
    if speaker is None:
        return next(iter(known.values()))
    if speaker.lower() not in known:
        raise ValueError(f"unknown voice {speaker!r}; allowed: {', '.join(known.values())}")
    return known[speaker.lower()]
