"""A chat: what is asked, and what has come of the answer."""

import base64
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from omnistage.demo.attachments import Part
from omnistage.demo.offer import MODES
from omnistage.demo.sound import GrowingSound
from omnistage.demo.timing import Timing
from omnistage.demo.waterfall import Mark

FORMAT = "pcm16"


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of a reader beside the question; None leaves it to the server."""

    model: str
    mode: str
    voice: str | None = None
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    has_timeline: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return MODES[self.mode]


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One question and its answer: parts for the server, files for the page."""

    text: str
    files: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    answer: str = ""
    answer_files: tuple[str, ...] = ()
    failure: str = ""


@dataclass(slots=True)
class ChatAnswer:
    """The answer so far."""

    sound: GrowingSound
    timing: Timing = field(default_factory=Timing)
    text: str = ""
    images: list[bytes] = field(default_factory=list)
    marks: tuple[Mark, ...] = ()

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Take one chunk of the stream."""
        for choice in chunk.choices:
            self._add_delta(choice.delta.model_dump())
        stamps = (chunk.model_extra or {}).get("timeline")
        if stamps:
            self.marks = tuple(Mark(one["stage"], one["event"], one["ms"]) for one in stamps)

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        audio = delta.get("audio") or {}
        if text := (delta.get("content") or "") + (audio.get("transcript") or ""):
            self.timing.text()
            self.text += text
        if samples := base64.b64decode(audio.get("data") or ""):
            self.timing.sound(len(samples))
            self.sound.add(samples)
        for item in delta.get("images") or ():
            self.timing.image()
            self.images.append(content_of(item["image_url"]["url"]))


def content_of(data_url: str) -> bytes:
    """The bytes in a data URL."""
    return base64.b64decode(data_url.partition(",")[2])


def messages_of(turns: Sequence[ChatTurn], system: str) -> Iterator[dict[str, Any]]:
    """A conversation as the API takes it; turns that failed are left out, but for the last."""
    if system:
        yield {"role": "system", "content": system}
    for turn in turns:
        if turn.failure and turn is not turns[-1]:
            continue
        text: list[Part] = [{"type": "text", "text": turn.text}] if turn.text else []
        yield {"role": "user", "content": [*turn.parts, *text]}
        if turn.answer and turn is not turns[-1]:
            yield {"role": "assistant", "content": turn.answer}


def chat_request(settings: ChatSettings, turns: Sequence[ChatTurn]) -> dict[str, Any]:
    """Arguments of `chat.completions.create`; the last turn is the question."""
    request: dict[str, Any] = {
        "model": settings.model,
        "messages": list(messages_of(turns, settings.system)),
        "modalities": list(settings.outputs),
        "stream": True,
    }
    if settings.seed is not None:
        request["seed"] = settings.seed
    if settings.outputs == MODES["Text and image"]:  # maybe of a server without a text model
        return request
    if settings.max_tokens is not None:
        request["max_completion_tokens"] = settings.max_tokens
    if settings.temperature is not None:
        request["temperature"] = settings.temperature
    if "audio" in settings.outputs:
        request["audio"] = {"voice": settings.voice, "format": FORMAT}
    if settings.has_timeline:
        request["extra_body"] = {"return_timeline": True}
    return request


async def ask(
    client: AsyncOpenAI, settings: ChatSettings, turns: Sequence[ChatTurn], answer: ChatAnswer
) -> AsyncGenerator[ChatAnswer, None]:
    """Ask the last turn's question; the same answer again after each chunk, and at its end."""
    try:
        stream = await client.chat.completions.create(**chat_request(settings, turns))
        async with stream:
            async for chunk in stream:
                answer.add(chunk)
                yield answer
        answer.timing.end()
        yield answer
    finally:
        answer.sound.end()
