"""The voices that clients have stored: bounded, found by id or name, told one after the other."""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.media.sound import Samples
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.voice_files import (
    BrokenVoice,
    InFolder,
    InMemory,
    Sounds,
    VoiceRecord,
)

logger = logging.getLogger(__name__)

MAX_VOICES = 1000
MAX_MEMORY_BYTES = 256 << 20
MAX_FOLDER_BYTES = 4 << 30
ID_BYTES = 12


class StoredVoices:
    """Voices kept in a folder, or in memory without one; new ones never replace others."""

    def __init__(
        self,
        folder: Path | None = None,
        max_voices: int = MAX_VOICES,
        max_bytes: int | None = None,
    ) -> None:
        self._sounds: Sounds = InMemory() if folder is None else InFolder(folder)
        self._max_voices = max_voices
        self._max_bytes = max_bytes or (MAX_MEMORY_BYTES if folder is None else MAX_FOLDER_BYTES)
        self._writing = asyncio.Lock()
        self._in_use: WeakValueDictionary[str, Samples] = WeakValueDictionary()
        found = sorted(self._sounds.voices(), key=lambda voice: (voice.created_at, voice.id))
        self._voices = {voice.id: voice for voice in found}

    @property
    def all(self) -> Sequence[VoiceRecord]:
        """The oldest first."""
        return list(self._voices.values())

    def get(self, voice_id: str) -> VoiceRecord:
        """One by its id; raises ApiError."""
        voice = self._voices.get(voice_id)
        if voice is None:
            message = f"No voice with the id {voice_id!r} is stored."
            raise ApiError(404, message, param="voice_id", code="voice_not_found")
        return voice

    def find(self, called: str) -> VoiceRecord | None:
        """One by its id, or its name in any case."""
        by_name = (one for one in self.all if one.name.lower() == called.lower())
        return self._voices.get(called) or next(by_name, None)

    async def add(
        self,
        name: str,
        consent: str,
        reference: Reference,
        taken: Collection[str] = (),
    ) -> VoiceRecord:
        """Keep a voice; raises ApiError if there is no room, or its name is another's or taken."""
        voice = VoiceRecord(
            id=f"voice_{secrets.token_hex(ID_BYTES)}",
            name=name,
            created_at=int(time.time()),
            consent=consent,
            ref_text=reference.text,
            num_samples=len(reference.samples),
            key=reference.key,
        )
        async with self._writing:
            self._check(voice, taken)
            try:
                await asyncio.to_thread(self._sounds.put, voice, reference.samples)
            except OSError as error:
                logger.error("a voice cannot be stored: %s", error)
                raise ApiError(500, "The voice cannot be stored.", code="not_stored") from error
            self._voices[voice.id] = voice
        return voice

    async def delete(self, voice_id: str) -> None:
        """Forget one; requests that have its sound go on. Raises ApiError."""
        async with self._writing:
            voice = self.get(voice_id)
            try:
                await asyncio.to_thread(self._sounds.remove, voice)
            except OSError as error:
                logger.error("voice %s cannot be deleted: %s", voice_id, error)
                raise ApiError(500, "The voice cannot be deleted.", code="not_stored") from error
            del self._voices[voice_id]
            self._in_use.pop(voice_id, None)

    async def reference(self, voice: VoiceRecord) -> Reference:
        """Returns what is spoken with, in memory once for all that do; raises ApiError."""
        samples = self._in_use.get(voice.id)
        if samples is not None:
            return Reference(samples, voice.key, voice.ref_text)
        try:
            samples = await asyncio.to_thread(self._sounds.samples, voice)
        except BrokenVoice as error:
            if voice.id not in self._voices:  # it was deleted meanwhile
                raise invalid("voice", f"{voice.id!r} is unknown") from error
            logger.error("the sound of voice %s cannot be read: %s", voice.id, error)
            message = f"The sound of voice {voice.id} cannot be read."
            raise ApiError(500, message, code="voice_broken") from error
        self._in_use[voice.id] = samples
        return Reference(samples, voice.key, voice.ref_text)

    def _check(self, voice: VoiceRecord, taken: Collection[str]) -> None:
        if self.find(voice.name) or voice.name.lower() in {name.lower() for name in taken}:
            raise invalid("name", f"{voice.name!r} is the name of another voice")
        num_bytes = sum(one.num_bytes for one in self.all) + voice.num_bytes
        if len(self._voices) >= self._max_voices or num_bytes > self._max_bytes:
            message = (
                f"At most {self._max_voices} voices, of {self._max_bytes >> 20} MiB together, "
                "are stored; delete one first."
            )
            raise ApiError(400, message, param="audio_sample", code="voices_full")
