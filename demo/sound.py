"""Sound on its way from the server to a browser: 16-bit samples, mono, at one rate."""

import asyncio
import io
import wave
from collections import OrderedDict
from collections.abc import AsyncIterator
from uuid import uuid4

RATE_HZ = 24_000
SAMPLE_BYTES = 2
MAX_SOUNDS = 64


def wav(samples: bytes) -> bytes:
    """A whole file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(RATE_HZ)
        file.writeframes(samples)
    return buffer.getvalue()


def duration_s(num_bytes: int) -> float:
    """How long so many bytes of samples play."""
    return num_bytes / SAMPLE_BYTES / RATE_HZ


class GrowingSound:
    """Samples that grow while they are read; all of it in one event loop."""

    def __init__(self) -> None:
        self.id = uuid4().hex
        self._samples = bytearray()
        self._is_ended = False
        self._has_news = asyncio.Event()

    @property
    def samples(self) -> bytes:
        """Returns what has come so far."""
        return bytes(self._samples)

    def add(self, samples: bytes) -> None:
        self._samples += samples
        self._wake()

    def end(self) -> None:
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        """Wake all readers, and have later ones wait for what comes next."""
        self._has_news.set()
        self._has_news = asyncio.Event()

    async def read(self) -> AsyncIterator[bytes]:
        """From the first sample to the last, each piece as soon as it is there."""
        start = 0
        while True:
            end = len(self._samples) // SAMPLE_BYTES * SAMPLE_BYTES
            if end > start:
                yield bytes(self._samples[start:end])
                start = end
            elif self._is_ended:
                return
            else:
                await self._has_news.wait()


class LatestSounds:
    """The latest sounds by their ids, which nobody can guess."""

    def __init__(self, limit: int = MAX_SOUNDS) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, GrowingSound] = OrderedDict()

    def open(self) -> GrowingSound:
        """A new one; the oldest goes for it, and ends for whoever still reads it."""
        sound = GrowingSound()
        self._kept[sound.id] = sound
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)[1].end()
        return sound

    def find(self, sound_id: str) -> GrowingSound | None:
        return self._kept.get(sound_id)
