"""The audio of answers on its way to a listener, who hears it in real time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RATE_HZ = 24_000
SAMPLE_BYTES = 2
Notice = Callable[[str, str], None]  # what happened to the audio of which response


@dataclass(frozen=True, slots=True)
class CutAnswer:
    """An answer that was cut off, and how much of it was heard."""

    item_id: str
    content_index: int
    heard_ms: int


@dataclass(slots=True)
class QueuedAudio:
    """Samples of one item of a response."""

    response_id: str
    item_id: str
    content_index: int
    pcm: bytes


class OutgoingAudio:
    """Takes audio as fast as it is made, and gives it out in frames; not thread-safe.

    `notice` is called with `started`, `stopped` or `cleared` and the id of a response.
    """

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._queue: deque[QueuedAudio] = deque()
        self._playing: str | None = None  # a response
        self._item: QueuedAudio | None = None  # the last of which something was heard
        self._num_heard = 0  # samples of that item
        self._whole: set[str] = set()  # responses of which no more comes
        self._dropped: set[str] = set()  # responses that were cut off, and are still made

    def add(self, audio: QueuedAudio) -> None:
        """Queue audio behind what waits; that of a response that was cut off is dropped."""
        if audio.response_id not in self._dropped and audio.pcm:
            self._queue.append(audio)

    def end(self, response_id: str) -> None:
        """No more audio of a response comes."""
        self._dropped.discard(response_id)
        if response_id == self._playing or any(
            one.response_id == response_id for one in self._queue
        ):
            self._whole.add(response_id)
            self._stop_if_drained()

    def take(self, num_samples: int) -> bytes:
        """Return the next samples, silence where there are none."""
        size = num_samples * SAMPLE_BYTES
        frame = bytearray()
        while len(frame) < size and self._queue:
            audio = self._queue[0]
            self._begin(audio)
            piece = audio.pcm[: size - len(frame)]
            frame += piece
            self._num_heard += len(piece) // SAMPLE_BYTES
            audio.pcm = audio.pcm[len(piece) :]
            if not audio.pcm:
                self._queue.popleft()
        self._stop_if_drained()
        return bytes(frame) + bytes(size - len(frame))

    def clear(self) -> CutAnswer | None:
        """Drop all that was not heard; returns what was cut off, if something was."""
        first = self._queue[0] if self._queue else None
        response_id = self._playing or (first.response_id if first is not None else None)
        if response_id is None:
            return None
        item = self._item if self._playing is not None else first
        assert item is not None
        heard_ms = 1000 * self._num_heard // RATE_HZ if self._playing is not None else 0
        self._dropped |= {one.response_id for one in self._queue} | {response_id}
        self._dropped -= self._whole
        self._whole.clear()
        self._queue.clear()
        self._playing = self._item = None
        self._num_heard = 0
        self._notice("cleared", response_id)
        return CutAnswer(item.item_id, item.content_index, heard_ms)

    def _begin(self, audio: QueuedAudio) -> None:
        if self._item is None or self._item.item_id != audio.item_id:
            self._num_heard = 0
        self._item = audio
        if self._playing != audio.response_id:
            if self._playing is not None:
                self._stop(self._playing)
            self._playing = audio.response_id
            self._notice("started", audio.response_id)

    def _stop_if_drained(self) -> None:
        if self._playing in self._whole and not self._queue:
            assert self._playing is not None
            self._stop(self._playing)
            self._playing = self._item = None
            self._num_heard = 0

    def _stop(self, response_id: str) -> None:
        self._whole.discard(response_id)
        self._notice("stopped", response_id)
