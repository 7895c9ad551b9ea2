"""Speech from a text, and text from speech."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.audio import Translation

from omnistage.demo.sound import GrowingSound
from omnistage.demo.timing import Timing


@dataclass(frozen=True, slots=True)
class SpeechSettings:
    """The text to speak, and how."""

    model: str
    text: str
    voice: str
    speed: float = 1.0
    instructions: str = ""


@dataclass(slots=True)
class SpeechProgress:
    """The speech so far."""

    sound: GrowingSound
    timing: Timing = field(default_factory=Timing)


def speech_request(settings: SpeechSettings) -> dict[str, Any]:
    """Arguments of `audio.speech.create`."""
    request: dict[str, Any] = {
        "model": settings.model,
        "input": settings.text,
        "voice": settings.voice,
        "speed": settings.speed,
        "response_format": "pcm",
    }
    if settings.instructions:
        request["instructions"] = settings.instructions
    return request


async def speak(
    client: AsyncOpenAI, settings: SpeechSettings, spoken: SpeechProgress
) -> AsyncGenerator[SpeechProgress, None]:
    """Have a text spoken; the same answer again after each piece of it."""
    creating = client.audio.speech.with_streaming_response.create(**speech_request(settings))
    try:
        async with creating as response:
            async for piece in response.iter_bytes():
                spoken.timing.sound(len(piece))
                spoken.sound.add(piece)
                yield spoken
        spoken.timing.end()
        yield spoken
    finally:
        spoken.sound.end()


@dataclass(slots=True)
class TranscriptProgress:
    """The transcript so far."""

    timing: Timing = field(default_factory=Timing)
    text: str = ""

    def add(self, event: Any) -> None:
        """Take one event of a stream."""
        if event.type == "transcript.text.delta":
            self.timing.text()
            self.text += event.delta
        elif event.type == "transcript.text.done":
            self.text = event.text


async def transcribe(
    client: AsyncOpenAI, model: str, file: Path, language: str = ""
) -> AsyncGenerator[TranscriptProgress, None]:
    """Returns what is said in a sound, while it is understood."""
    transcript = TranscriptProgress()
    more: dict[str, Any] = {"language": language} if language else {}
    stream = await client.audio.transcriptions.create(
        model=model, file=file, stream=True, response_format="json", **more
    )
    async with stream:
        async for event in stream:
            transcript.add(event)
            yield transcript
    transcript.timing.end()
    yield transcript


async def translate(client: AsyncOpenAI, model: str, file: Path) -> TranscriptProgress:
    """Returns what is said in a sound, in English."""
    content = await asyncio.to_thread(file.read_bytes)
    transcript = TranscriptProgress()
    answer = await client.post(  # the SDK's own method warns that it is deprecated
        "/audio/translations",
        cast_to=Translation,
        body={"model": model},
        files={"file": (file.name, content)},
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )
    transcript.timing.text()
    transcript.text = answer.text
    transcript.timing.end()
    return transcript
