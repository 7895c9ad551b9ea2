"""Tiny checkpoints, and what the qwen-tts package made with them."""

from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from references.qwen3_tts_talks import MODELS, checkpoint_hash
from safetensors import safe_open
from safetensors.torch import load_file
from support.models.tiny_voice_model import write_tiny_voice_model

from omnistage.stages.qwen3_tts.family import FAMILY

REFERENCES = Path(__file__).parents[2] / "references"
RECORDED = REFERENCES / "qwen3_tts_codec.safetensors"
SPOKEN = REFERENCES / "qwen3_tts_talker.safetensors"


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


@pytest.fixture(scope="session")
def tts_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny checkpoints that the package's answers were recorded with."""
    folder = tmp_path_factory.mktemp("tts")
    for model in MODELS:
        resolve_name(FAMILY.tiny[model].write)(folder / model, 0)
    return folder


@pytest.fixture(scope="session")
def spoken(tts_checkpoints: Path) -> dict[str, torch.Tensor]:
    """What the package spoke, of these very checkpoints."""
    with safe_open(SPOKEN, "pt") as recorded:
        hashes = recorded.metadata()
        tensors = {name: recorded.get_tensor(name) for name in recorded.keys()}  # noqa: SIM118
    for model in MODELS:
        if checkpoint_hash(tts_checkpoints / model) != hashes[model]:
            pytest.fail(f"{model} is another checkpoint than the recorded one: record it again")
    return tensors
