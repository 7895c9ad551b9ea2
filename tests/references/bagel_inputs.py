"""Requests of which BAGEL's own code was recorded, and the checkpoint that they are for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FILES = ("ae.safetensors", "ema.safetensors", "llm_config.json", "vit_config.json", "vocab.json")
VISION_SIDES, LATENT_SIDES = (112, 112, 14), (128, 128, 16)  # of the tiny checkpoint's images
MAX_THINK_TOKENS = 40


@dataclass(frozen=True)
class Drawing:
    """A request: `images` are the sizes (width, height) of those that it edits.

    `more`: arguments of the pipeline's call that are named as the recorded code has them.
    """

    prompt: str
    seed: int
    num_steps: int
    size: tuple[int, int] | None = None  # height, width
    images: tuple[tuple[int, int], ...] = ()
    think: bool = False
    scales: tuple[float, float] = (4.0, 1.0)  # of text and images
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Talk:
    """A conversation that words answer: its texts in order."""

    texts: tuple[str, ...]
    think: bool = False


TALKS = {
    "words": Talk(("What is a red fox?",)),
    "turns": Talk(
        ("Who are you?", "A small boat.", "And where is the harbour, on a summer evening?")
    ),
    "reasoned": Talk(("How many cats are on the chair?",), think=True),
}
MAX_WORDS = 24  # tokens of an answer
EDIT = {"cfg_interval": (0.0, 1.0), "cfg_renorm_type": "text_channel"}
DRAWINGS = {
    "text": Drawing("A red fox in the snow.", 1, 5, (64, 96)),
    "longer": Drawing("Two cats on a chair by the window, in oil.", 2, 7, (96, 64)),
    "unguided": Drawing("a dog", 3, 3, (64, 64), scales=(1.0, 1.0)),
    "channel": Drawing(
        "a bird",
        4,
        4,
        (128, 64),
        scales=(3.0, 1.0),
        more={"cfg_renorm_type": "channel", "cfg_renorm_min": 0.3, "timestep_shift": 2.0},
    ),
    "thought": Drawing("A boat at sea", 5, 4, (64, 64), think=True),
    "edit": Drawing("make it blue", 6, 4, images=((70, 50),), scales=(4.0, 2.0), more=EDIT),
    "two": Drawing(
        "put the first on the second",
        7,
        3,
        images=((40, 60), (120, 100)),
        scales=(3.0, 1.5),
        more={"cfg_interval": (0.4, 1.0), "cfg_renorm_type": "global"},
    ),
    "thought edit": Drawing(
        "and a hat", 8, 3, images=((64, 64),), think=True, scales=(4.0, 2.0), more=EDIT
    ),
}


def image(size: tuple[int, int], number: int) -> Image.Image:
    """Return an image to edit: noise of a few colours, in squares of 8 pixels."""
    width, height = size
    small = np.random.default_rng(number).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    large = small.astype(np.uint8).repeat(8, 0).repeat(8, 1)
    return Image.fromarray(large[:height, :width])


def images_of(drawing: Drawing) -> list[Image.Image]:
    """Return the images that a request edits."""
    return [image(size, number) for number, size in enumerate(drawing.images)]


def hash_of(folder: Path) -> str:
    """Return a checkpoint's hash."""
    made = hashlib.sha256()
    for name in FILES:
        made.update((folder / name).read_bytes())
    return made.hexdigest()
