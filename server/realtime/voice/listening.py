"""The audio of a session that no item has yet, on the clock of all audio ever appended."""

import numpy as np
import numpy.typing as npt

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.realtime.voice.formats import (
    PCM,
    Resampler,
    UserAudio,
    decoded,
    sample_bytes,
    samples_of,
)

MAX_BUFFER_S = 600.0
MIN_COMMIT_MS = 100
HEARING_RATE_HZ = 16_000  # of what detectors of speech take
FRAME_SAMPLES = 512
FRAME_MS = 1000 * FRAME_SAMPLES / HEARING_RATE_HZ

Frames = npt.NDArray[np.float32]  # [n, FRAME_SAMPLES], -1 to 1


class InputBuffer:
    """Audio that waits to become an item, in the format in which it came.

    Times are milliseconds of all audio that was ever appended.
    """

    def __init__(self, form: str = PCM) -> None:
        self.form = form
        self._data = bytearray()
        self._begin_ms = 0.0

    @property
    def begin_ms(self) -> float:
        """Where the audio begins that is here."""
        return self._begin_ms

    @property
    def end_ms(self) -> float:
        """How much was ever appended."""
        return self._begin_ms + len(self._data) / self._bytes_a_ms

    @property
    def ms(self) -> float:
        """How much is here."""
        return len(self._data) / self._bytes_a_ms

    @property
    def _bytes_a_ms(self) -> float:
        return samples_of(self.form).rate_hz * sample_bytes(self.form) / 1000

    def change_format(self, form: str) -> None:
        """Take another format from now on; audio of the old one is dropped."""
        if form != self.form:
            self._begin_ms, self.form = self.end_ms, form
            self._data.clear()

    def append(self, data: bytes) -> None:
        """Add whole samples; raises ApiError for a part of one, or if there is no room."""
        if len(data) % sample_bytes(self.form):
            raise invalid("audio", f"must have whole samples of {sample_bytes(self.form)} bytes")
        if self.ms + len(data) / self._bytes_a_ms > 1000 * MAX_BUFFER_S:
            message = f"The input audio buffer has {MAX_BUFFER_S:g} s already; commit or clear it."
            raise ApiError(400, message, param="audio", code="input_audio_buffer_full")
        self._data += data

    def clear(self) -> None:
        """Forget what is here."""
        self.forget_before(self.end_ms)

    def forget_before(self, at_ms: float) -> None:
        """Forget what came before a time."""
        self._take_bytes(at_ms)

    def take(self, start_ms: float | None = None, end_ms: float | None = None) -> UserAudio:
        """Take what lies between two times, else all; what came before the first is forgotten."""
        if start_ms is not None:
            self._take_bytes(start_ms)
        return UserAudio(self._take_bytes(self.end_ms if end_ms is None else end_ms), self.form)

    def peek(self, end_ms: float) -> UserAudio:
        """Return a copy of what came before a time; it stays here."""
        return UserAudio(bytes(self._data[: self._num_bytes(end_ms)]), self.form)

    def _take_bytes(self, at_ms: float) -> bytes:
        num_bytes = self._num_bytes(at_ms)
        taken = bytes(self._data[:num_bytes])
        del self._data[:num_bytes]
        self._begin_ms += num_bytes / self._bytes_a_ms
        return taken

    def _num_bytes(self, at_ms: float) -> int:
        """How much of what is here came before a time, in whole samples."""
        size = sample_bytes(self.form)
        num_samples = round((at_ms - self._begin_ms) * self._bytes_a_ms / size)
        return max(0, min(num_samples * size, len(self._data)))


class Ear:
    """Audio of a format as the frames that a detector of speech takes."""

    def __init__(self, form: str) -> None:
        self.form = form
        self._resampler = Resampler(samples_of(form), HEARING_RATE_HZ)
        self._rest = np.zeros(0, np.int16)

    def add(self, data: bytes) -> Frames:
        """Return the frames that whole samples complete."""
        new = self._resampler.add(decoded(data, self.form))
        samples = np.concatenate([self._rest, new])
        num_whole = len(samples) // FRAME_SAMPLES * FRAME_SAMPLES
        self._rest = samples[num_whole:]
        whole = samples[:num_whole].reshape(-1, FRAME_SAMPLES)
        frames: Frames = (whole / 32768).astype(np.float32)
        return frames
