"""Server-sent events of chat completions, as far as a load client needs them.

OpenAI's form has sound in `delta.audio`; vllm-omni has it in `delta.content` of events whose
`modality` says so, and images there as a list of parts.
"""

import json
from typing import Any

import msgspec
from msgspec import Struct

DATA = b"data:"
DONE = b"[DONE]"


class AudioDelta(Struct):
    """`delta.audio`."""

    data: str | None = None
    transcript: str | None = None


class ContentPart(Struct):
    """One part of a content that is a list, or one image."""

    type: str = ""


class Delta(Struct):
    """The content that an event adds; also a whole `message`."""

    content: str | list[ContentPart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: AudioDelta | None = None
    images: list[ContentPart] | None = None

    def text(self, is_sound: bool) -> str:
        """Returns what there is to read, all of it; content that is sound is not."""
        content = self.content if isinstance(self.content, str) and not is_sound else None
        transcript = self.audio.transcript if self.audio else None
        parts = (self.reasoning or self.reasoning_content, content, transcript)
        return "".join(part for part in parts if part)

    def sound(self, is_sound: bool) -> str | None:
        """Base64 of a piece of sound."""
        if is_sound and isinstance(self.content, str):
            return self.content
        return self.audio.data if self.audio else None

    def num_images(self) -> int:
        """How many images came with it."""
        parts = self.content if isinstance(self.content, list) else ()
        return len(self.images or ()) + sum(part.type == "image_url" for part in parts)


class ChoiceEvent(Struct):
    """One choice of a streamed (`delta`) or whole (`message`) answer."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class TokenDetails(Struct):
    """Details of the completion's tokens; a server need not report them."""

    text_tokens: int | None = None


class ServerUsage(Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: TokenDetails | None = None


class TimelineMark(Struct, frozen=True):
    """One stamp of this server's `timeline`, ms after the request was read."""

    stage: str
    event: str
    ms: float


class Event(Struct):
    """A chunk, a whole completion or an error."""

    choices: list[ChoiceEvent] = []
    modality: str | None = None
    usage: ServerUsage | None = None
    timeline: list[TimelineMark] = []
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode


class LineReader:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that a block completes, without their ends."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        return lines


def payload(line: bytes) -> bytes | None:
    """The data of a line; None for comments, other fields and blank lines."""
    return line[len(DATA) :].strip() if line.startswith(DATA) else None


def error_message(body: bytes) -> str:
    """Returns what an error body says: OpenAI's envelope, FastAPI's detail, or as it is."""
    try:
        said = json.loads(body)
    except ValueError:
        return body[:300].decode(errors="replace").strip()
    return message_of(said.get("error", said) if isinstance(said, dict) else said)


def message_of(error: object) -> str:
    """Returns what an error object says."""
    if isinstance(error, dict):
        error = error.get("message", error.get("detail", error))
    return str(error)
