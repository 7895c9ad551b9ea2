"""What both MammothModa2's own code and ours are to draw and to answer: no model library."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from references.omnigen2_drawings import noise

STEPS = 3
GUIDANCE = 7.0  # of ids
ID_SIDE = 32  # pixels of the side of what one id stands for


@dataclass(frozen=True, slots=True)
class Drawing:
    """A call, by the names that our pipeline has; its size is [width, height]."""

    prompt: str
    size: tuple[int, int] = (64, 64)
    seed: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)


LONG = "two cats and a fox in the snow, watercolour, seen from above"
DRAWINGS = (
    Drawing("a cat"),
    Drawing("a red fox", seed=2),
    Drawing(LONG, (64, 128)),
    Drawing("Löwe 狐狸", (96, 64), 3, {"guidance_scale": 2.5}),
    Drawing("a dog", (96, 96), 4, {"negative_prompt": "rain"}),
    Drawing("a bird", (64, 64), 5, {"guidance_scale": 1.0}),
    Drawing("sides of two digits", (352, 320), 6),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is answered with words: images of sizes [width, height], then a text.

    `num_tokens`: at most so many are said.
    """

    name: str
    text: str
    given: tuple[tuple[int, int], ...] = ()
    num_tokens: int = 24

    @property
    def images(self) -> list[Image.Image]:
        """The images that are shown."""
        return [noise(size, number) for number, size in enumerate(self.given)]


QUESTIONS = (
    Question("a text", "Who are you?"),
    Question("a long text", f"Say what this is: {LONG}.", num_tokens=40),
    Question("letters of several bytes", "Löwe 狐狸?"),
    Question("an image", "What is this?", ((64, 64),)),
    Question("a wide image", "What is this?", ((128, 64),)),
    Question("two images", "Which is larger?", ((96, 64), (32, 64)), 32),
    Question("an image that is made smaller", "And this?", ((300, 170),)),
)


def checkpoint_hash(folder: Path) -> str:
    """Return one of the files that images depend on."""
    digest = hashlib.sha256()
    for name in (
        "config.json",
        "model.safetensors",
        "chat_template.jinja",
        "mammothu.tiktoken",
        "mammothu_vision_tokens.txt",
        "t2i_generation_config.json",
        "und_generation_config.json",
        "preprocessor_config.json",
    ):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
