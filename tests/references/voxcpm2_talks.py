"""What both the voxcpm package and ours are asked to speak: no library but numpy and torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from references.qwen3_tts_inputs import sound

STRIDE = 389  # of the recorded samples: prime to those of a patch, so that all phases are there
SAMPLES_A_PATCH = 7680
MAX_PATCHES = 20


@dataclass(frozen=True, slots=True)
class Talk:
    """One text, and how it is to be spoken; a sound with words is continued, one without copied."""

    name: str
    text: str
    seed: int
    instructions: str = ""
    sound_length: int = 0  # of a reference sound, in samples at 24 kHz
    sound_text: str | None = None

    @property
    def spoken(self) -> str:
        """Returns the text with its description in front, as the package takes it."""
        return f"({self.instructions}){self.text}" if self.instructions else self.text


_LONG = "A longer text to be spoken, with a second half. And more! \u4f60\u597d\uff0c12."

TALKS = (
    Talk("plain", "Hello, who are you?", 1),
    Talk("long", _LONG, 2),
    Talk("told", "Yes.", 3, instructions="A low, slow voice"),
    Talk("chinese", "\u4f60\u597d\u4f60", 4),
    Talk("a voice", "Hello there", 5, sound_length=24_000),
    Talk("a voice, told", _LONG, 6, instructions="glad", sound_length=30_001),
    Talk("a voice with words", "And on it goes", 7, sound_length=24_000, sound_text="What I said"),
    Talk("long sound with a word", "Yes.", 8, sound_length=50_000, sound_text="Ah. "),
)


def sound_of(talk: Talk) -> npt.NDArray[np.float32]:
    """The reference sound, mono at 24 kHz."""
    return sound(talk.sound_length)


def key(talk: Talk, what: str) -> str:
    """The name of a recorded tensor."""
    return f"{talk.name}/{what}"


def checkpoint_hash(folder: Path) -> str:
    """Of what answers depend on; a file of torch's by its tensors."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        digest.update((folder / name).read_bytes())
    state = torch.load(folder / "audiovae.pth", weights_only=True)["state_dict"]
    for name, tensor in state.items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
