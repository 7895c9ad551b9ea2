"""Speech of given texts: what is asked, and raw samples as they arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpcore

from omnistage.bench.client import Client
from omnistage.bench.network import StampedStream
from omnistage.bench.recording import Recording
from omnistage.bench.workload import WORDS, fill


@dataclass(frozen=True, slots=True)
class Texts:
    """Makes the bodies of requests for speech, raw samples; number k is the same for the same seed.

    `frames` fixes the codec frames of an answer (this server's stage_params). `overrides` as for
    chats; {prompt} is the text.
    """

    seed: int
    num_words: int
    voice: str | None = None
    frames: int | None = None
    words: Sequence[str] = tuple(WORDS)
    overrides: tuple[Mapping[str, Any], ...] = field(default=())

    def text(self, number: int) -> str:
        """Random words, as one sentence."""
        chosen = Random(f"{self.seed}/{number}").choices(self.words, k=self.num_words)
        return f"{' '.join(chosen).capitalize()}."

    def body(self, number: int, model: str) -> dict[str, Any]:
        """The body of request `number`."""
        text = self.text(number)
        body: dict[str, Any] = {
            "model": model,
            "input": text,
            "voice": self.voice,
            "response_format": "pcm",
            "stream_format": "audio",
        }
        if self.frames is not None:
            body["stage_params"] = {"talker": {"max_tokens": self.frames, "ignore_eos": True}}
        for override in self.overrides:
            body |= fill(override, text)
        return {name: value for name, value in body.items() if value is not None}


class SpeechClient(Client):
    """Asks for speech; each block of samples is a packet that came when it was read."""

    path = "audio/speech"

    def _has_sound(self, body: Mapping[str, object]) -> bool:
        return True

    async def _read(
        self, response: httpcore.Response, recording: Recording, stream: StampedStream
    ) -> None:
        async for block in response.aiter_stream():
            recording.add_samples(len(block), stream.read_s)
        recording.is_finished = True
