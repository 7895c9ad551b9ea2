"""Where the sounds of stored voices are: a folder that outlives the server, or memory.

A file is a line of JSON, which says what it is, and the samples as they are (float32, little
endian). It is complete or not there: it is written under another name first.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from omnistage.server.media.sound import Samples
from omnistage.server.tasks.speech.reference import RATE_HZ, key_of

logger = logging.getLogger(__name__)

VERSION = 1
ENDING, UNFINISHED = ".voice", ".unfinished"
MAX_LINE = 64 << 10
SAMPLE = np.dtype("<f4")


class VoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A voice that a client has stored; its sound lies elsewhere."""

    version: int = VERSION
    id: str
    name: str
    created_at: int
    consent: str
    ref_text: str | None
    num_samples: int
    key: str

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of its audio."""
        return self.num_samples * SAMPLE.itemsize

    @property
    def seconds(self) -> float:
        """How long its sound is."""
        return self.num_samples / RATE_HZ


class BrokenVoice(Exception):
    """A stored voice that cannot be read."""


class Sounds(Protocol):
    """Keeps voices with their sounds; what takes a while is called in threads."""

    def voices(self) -> Iterator[VoiceRecord]:
        """Returns the stored voices."""

    def put(self, voice: VoiceRecord, samples: Samples) -> None:
        """Keep one; raises OSError."""

    def samples(self, voice: VoiceRecord) -> Samples:
        """The sound of one; raises BrokenVoice."""

    def remove(self, voice: VoiceRecord) -> None:
        """Forget one; raises OSError."""


class InMemory:
    """Lost at the server's end."""

    def __init__(self) -> None:
        self._sounds: dict[str, Samples] = {}

    def voices(self) -> Iterator[VoiceRecord]:
        """None: it begins empty."""
        return iter(())

    def put(self, voice: VoiceRecord, samples: Samples) -> None:
        """Keep one."""
        self._sounds[voice.id] = samples

    def samples(self, voice: VoiceRecord) -> Samples:
        """The sound of one."""
        try:
            return self._sounds[voice.id]
        except KeyError:
            raise BrokenVoice("it was deleted") from None

    def remove(self, voice: VoiceRecord) -> None:
        """Forget one."""
        self._sounds.pop(voice.id, None)


class InFolder:
    """One file a voice; of the folder's other files nothing is touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def voices(self) -> Iterator[VoiceRecord]:
        """Returns the voices whose files are whole; the log names the others, which stay."""
        for left in self._folder.glob(f"*{ENDING}{UNFINISHED}"):
            left.unlink(missing_ok=True)
        for path in sorted(self._folder.glob(f"*{ENDING}")):
            try:
                yield _described(path)
            except (OSError, BrokenVoice) as error:
                logger.warning("%s is no voice and is skipped: %s", path, error)

    def put(self, voice: VoiceRecord, samples: Samples) -> None:
        """Write its file; raises OSError, and leaves nothing behind then."""
        path = self._path(voice)
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            with open(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(msgspec.json.encode(voice) + b"\n")
                file.write(samples.astype(SAMPLE).tobytes())
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            self._sync()
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def samples(self, voice: VoiceRecord) -> Samples:
        """Read its file; raises BrokenVoice."""
        try:
            data = self._path(voice).read_bytes()
        except OSError as error:
            raise BrokenVoice(error.strerror) from error
        samples = np.frombuffer(data[data.find(b"\n") + 1 :], SAMPLE).astype(np.float32)
        if key_of(samples) != voice.key:
            raise BrokenVoice("its samples are not those that were stored")
        return samples

    def remove(self, voice: VoiceRecord) -> None:
        """Remove its file; raises OSError."""
        self._path(voice).unlink(missing_ok=True)
        self._sync()

    def _path(self, voice: VoiceRecord) -> Path:
        return self._folder / f"{voice.id}{ENDING}"

    def _sync(self) -> None:
        """Have the folder's entries on disk."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _described(path: Path) -> VoiceRecord:
    """The first line of a file; raises BrokenVoice and OSError."""
    with path.open("rb") as file:
        line = file.readline(MAX_LINE)
        num_bytes = os.fstat(file.fileno()).st_size - len(line)
    try:
        voice = msgspec.json.decode(line, type=VoiceRecord)
    except msgspec.DecodeError as error:
        raise BrokenVoice(f"its first line cannot be read: {error}") from error
    if voice.version != VERSION:
        raise BrokenVoice(f"it is of version {voice.version}; this server reads {VERSION}")
    if voice.id != path.name.removesuffix(ENDING):
        raise BrokenVoice("it has another name than its voice")
    if num_bytes != voice.num_bytes:
        raise BrokenVoice(f"it has {num_bytes} bytes of sound; {voice.num_bytes} were stored")
    return voice
