"""A tiny checkpoint without a talker, and what the qwen-tts package made with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_voice_model import write_tiny_voice_model

RECORDED = Path(__file__).parents[2] / "references" / "qwen3_tts_codec.safetensors"


@pytest.fixture(scope="session")
def voice_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voice_model")
    write_tiny_voice_model(folder)
    return folder


@pytest.fixture(scope="session")
def other_voice_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another seed."""
    folder = tmp_path_factory.mktemp("other_voice_model")
    write_tiny_voice_model(folder, seed=1)
    return folder


@pytest.fixture(scope="session")
def recorded() -> dict[str, torch.Tensor]:
    return load_file(RECORDED)
