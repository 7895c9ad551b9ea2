"""Answers of tasks: pieces while an answer is made, and the whole answer."""

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from PIL import Image

from omnistage.server.media.images import MODES
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.recordings import Audio, Video, as_base64
from omnistage.stage_configs.json_types import Json, JsonMap

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Text:
    """Some more of the text; `index` says of which choice."""

    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Some more of what the model thinks before it answers."""

    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; streamed, a piece of one: its arguments come bit by bit."""

    id: str
    name: str
    arguments: str
    number: int = 0  # among the calls of its choice
    index: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a picture or video was taken; `num_steps` is 0 if the pipeline does not say it.

    `stage`: the one that took it; one that makes image ids tells of its own, before all others.
    """

    step: int
    num_steps: int
    stage: str


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview of an image before its last step."""

    image: Image.Image
    index: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is done."""

    image: Image.Image
    index: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens went in and came out, with what they were where that is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_details: Mapping[str, int] = field(default_factory=dict)
    output_details: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, usage: JsonMap) -> "Usage":
        """From the usage of a chat, or of pictures, speech and transcripts."""
        is_chat = "prompt_tokens" in usage
        into, out = ("prompt", "completion") if is_chat else ("input", "output")
        details = usage.get(f"{into}_tokens_details") or usage.get(f"{into}_token_details") or {}
        return cls(
            usage.get(f"{into}_tokens", 0),
            usage.get(f"{out}_tokens", 0),
            details,
            usage.get(f"{out}_tokens_details") or {},
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a chat."""

    text: str = ""
    finish_reason: str = "stop"
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: JsonMap | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """When the request came to which stage and event, in ms after it was made."""

    stage: str
    event: str
    ms: float


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """All of an answer; with several choices `text` and its like are the first one's."""

    id: str
    choices: tuple[Choice, ...] = (Choice(),)
    audio: Audio | None = None
    images: tuple[Image.Image, ...] = ()
    video: Video | None = None
    codes: tuple[tuple[int, ...], ...] = ()  # codec frames, with return_codes
    usage: Usage = Usage()
    timeline: tuple[Stamp, ...] = ()

    @property
    def text(self) -> str:
        """Returns what was said or written."""
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        """Returns what the model thought before it answered."""
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model calls."""
        return self.choices[0].tool_calls

    @property
    def finish_reason(self) -> str:
        """Why the answer ended."""
        return self.choices[0].finish_reason

    @property
    def message(self) -> Json:
        """The answer as a message, to go on with the conversation."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.tool_calls
        ]
        message = {"role": "assistant", "content": self.text}
        return {**message, "tool_calls": calls} if calls else message

    def __repr__(self) -> str:
        parts = [repr(_short(self.text))] if self.text else []
        parts += [f"{len(self.tool_calls)} tool calls"] if self.tool_calls else []
        parts += [repr(self.audio)] if self.audio is not None else []
        parts += [f"{image.width}x{image.height} image" for image in self.images]
        parts += [] if self.video is None else [repr(self.video)]
        return f"Answer({', '.join([*parts, self.finish_reason])})"

    def _repr_html_(self) -> str:
        """The text, a player and the pictures, for notebooks."""
        parts = [f"<p>{html.escape(choice.text)}</p>" for choice in self.choices if choice.text]
        made = [one for one in (self.audio, self.video) if one is not None]
        parts += [one._repr_html_() for one in made]
        parts += [
            f'<img src="data:image/png;base64,{as_base64(png_of(image))}"/>'
            for image in self.images
        ]
        return "".join(parts) or html.escape(repr(self))


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a stage; `in_use`: by how many requests, `rank`: of a text's."""

    name: str
    path: str
    pinned: bool = False
    in_use: int = 0
    rank: int | None = None


Piece = Text | Reasoning | ToolCall | Audio | Progress | Preview | Picture | Answer


def picture_of(output: ImageOutput) -> Image.Image:
    """The image that a stage has made."""
    return Image.frombytes(MODES[output.num_channels], output.size, output.pixels)


def png_of(image: Image.Image) -> bytes:
    """A file of it that loses nothing."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def stamps_of(timeline: Sequence[JsonMap]) -> tuple[Stamp, ...]:
    """The stamps of a request's way."""
    return tuple(Stamp(one["stage"], one["event"], one["ms"]) for one in timeline)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
