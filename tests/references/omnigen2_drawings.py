"""What both OmniGen2's own code and ours are to draw: no model library."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

STEPS = 4
Size = tuple[int, int]  # width and height


@dataclass(frozen=True, slots=True)
class Drawing:
    """A call of the pipeline, by the names that ours has; `given`: sizes of images to refer to."""

    name: str
    prompt: str
    size: Size | None = None
    given: tuple[Size, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Returns one of its own."""
        return len(self.name)

    @property
    def images(self) -> list[Image.Image]:
        """Returns what to refer to."""
        return [noise(size, seed) for seed, size in enumerate(self.given)]

    @property
    def sides(self) -> dict[str, int]:
        """Returns the size as arguments, none if it is that of the image."""
        return {} if self.size is None else dict(zip(("width", "height"), self.size, strict=True))


def noise(size: Size, seed: int) -> Image.Image:
    """Return an image of noise."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


SQUARE = (64, 64)
LONG = "two cats and a fox in the snow, watercolour, seen from above"
DRAWINGS = (
    Drawing("words", "a red fox", SQUARE),
    Drawing("wide", LONG, (96, 48), arguments={"guidance_scale": 2.5, "negative_prompt": "rain"}),
    Drawing("no guidance", "a dog", SQUARE, arguments={"guidance_scale": 1.0}),
    Drawing("several of a prompt", "a bird", SQUARE, arguments={"num_images_per_prompt": 2}),
    Drawing("an edit", "make it blue", given=((90, 70),)),
    Drawing("an edit of a size", "a hat", SQUARE, ((40, 64),), {"image_guidance_scale": 2.0}),
    Drawing(
        "five images",
        "all of them in one room",
        (48, 64),
        ((64, 32), (50, 70), SQUARE, (32, 32), (96, 64)),
        {"image_guidance_scale": 1.5, "negative_prompt": "dark", "guidance_scale": 3.0},
    ),
)
# Chats, whose answers are words or a picture.
CHATS = (
    Drawing("words", "hello", SQUARE),
    Drawing("a picture", "a bird", SQUARE),
    Drawing("another picture", "say something about snow", (48, 64)),
    Drawing("words of an image", "who?", SQUARE, (SQUARE,)),
    Drawing("a picture of an image", "make it blue", given=((90, 70),)),
    Drawing("a picture of two images", "both", SQUARE, ((64, 96), (40, 64))),
)


def checkpoint_hash(folder: Path) -> str:
    """Return one of the files that images depend on."""
    digest = hashlib.sha256()
    for name in (
        "mllm/config.json",
        "mllm/model.safetensors",
        "processor/tokenizer.json",
        "processor/chat_template.jinja",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
