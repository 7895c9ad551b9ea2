"""Talks as token ids, rendered as the chat template does; tasks with pictures and tools."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from pictures import Scene
from texts import question
from tokens import make_tokenizer
from world import CAPITALS, ONES, number

from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.vllm.models.rope import Grid, rope_positions

TRANSCRIBE = "Transcribe the audio into text, word for word. Answer with the text only."
TOOL_CITIES = list(CAPITALS.values())
HOP = 160
PATCH = 32  # pixels a side of one token


@dataclass(frozen=True)
class Sample:
    """Token ids of a talk, what of them is learned, and its pictures' and sounds' places."""

    ids: npt.NDArray[np.int16]
    learned: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int16] | None = None  # [3, n]; counts up otherwise
    pictures: tuple[int, ...] = ()
    sound: int = -1


def num_audio_tokens(num_frames: int) -> int:
    """As the audio tower shortens mel frames."""
    rest = num_frames % 100
    first = (rest - 1) // 2 + 1
    return ((first - 1) // 2 + 1 - 1) // 2 + 1 + (num_frames // 100) * 13


@cache
def tokenizer_of_all() -> TinyTokenizer:
    """Made once a process."""
    return make_tokenizer()


class Writer:
    """Renders talks as the chat template does."""

    def __init__(self) -> None:
        self.tokenizer: TinyTokenizer = tokenizer_of_all()
        self._image = self.tokenizer.id("<|image_pad|>")

    def ids(self, text: str) -> list[int]:
        """Token ids; names of special tokens are those tokens."""
        return list(self.tokenizer.tokenizer.encode(text).ids)

    def sample(
        self,
        turns: Sequence[str],
        system: str = "",
        side: int = 0,
        pictures: tuple[int, ...] = (),
        sound: int = -1,
    ) -> Sample:
        """One of user and assistant turns by turns; `side`: of the pictures, in pixels."""
        ids: list[int] = []
        learned: list[bool] = []

        def add(text: str, is_learned: bool = False) -> None:
            new = self.ids(text)
            ids.extend(new)
            learned.extend([is_learned] * len(new))

        if system:
            add(f"<|im_start|>system\n{system}<|im_end|>\n")
        for index, turn in enumerate(turns):
            role = ("user", "assistant")[index % 2]
            add(f"<|im_start|>{role}\n")
            add(f"{turn}<|im_end|>", role == "assistant")
            add("\n")
        array = np.asarray(ids, np.int16)
        positions = None
        if pictures:
            cells = side // PATCH
            starts = np.flatnonzero((array[1:] == self._image) & (array[:-1] != self._image)) + 1
            grids = [Grid(int(start), (1, cells, cells), 1) for start in starts]
            positions = rope_positions(len(array), grids).astype(np.int16)
        return Sample(array, np.asarray(learned), positions, pictures, sound)


def picture_marks(count: int, side: int) -> str:
    """The tokens of pictures of this side."""
    return f"<|vision_start|>{'<|image_pad|>' * (side // PATCH) ** 2}<|vision_end|>" * count


def sound_marks(num_samples: int) -> str:
    """The tokens of a sound of so many samples at 16 kHz."""
    pads = "<|audio_pad|>" * num_audio_tokens(num_samples // HOP)
    return f"<|audio_start|>{pads}<|audio_end|>"


def two_pictures(pick: random.Random, scenes: Sequence[Scene]) -> tuple[str, str]:
    """A question about the first or the second of two."""
    index = pick.randrange(2)
    one = scenes[index]
    which = ("first", "second")[index]
    if len(one.shapes) > 1 or pick.random() < 0.3:
        return f"What color is the background of the {which} picture?", (
            f"The background is {one.ground}."
        )
    shape = one.shapes[0]
    return f"What is in the {which} picture?", (
        f"The number is {ONES[int(shape.kind)]}."
        if shape.kind.isdigit()
        else f"A {shape.colour} {shape.kind} on {one.ground}."
    )


def tool_talk(pick: random.Random) -> tuple[str, tuple[str, ...]]:
    """A system turn with a tool, and turns that call it and read its result out."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": pick.choice(
                (
                    "The weather of a city.",
                    "Get the weather of a city.",
                    "Weather",
                    "Get current weather",
                )
            ),
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    city = pick.choice(TOOL_CITIES)
    system = (
        'Tools, each called as <tool_call>{"name": …, "arguments": …}</tool_call>:\n'
        f"{json.dumps(tool)}\n"
    )
    asked = pick.choice(
        (
            "What is the weather in {}?",
            "How is the weather in {}?",
            "What's the weather in {}?",
            "Tell me the weather in {}.",
        )
    ).format(city)
    call = f'<tool_call>{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}</tool_call>'
    sky, degrees = pick.choice(("sunny", "rainy", "cloudy")), pick.randrange(1, 31)
    result = pick.choice(
        (f'{{"weather": "{sky}", "degrees": {degrees}}}', f"{sky}, {degrees} degrees")
    )
    answer = f"It is {sky} in {city}, with {number(degrees)} degrees."
    if pick.random() < 0.3:
        _, other, reply = question(pick)
        return system, (other, reply)
    turns = (asked, call, result, answer)
    return system, turns[: pick.choice((2, 4))]
