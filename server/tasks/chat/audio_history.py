"""Spoken answers by id, so that a later turn can name one instead of repeating it."""

import time
from collections import OrderedDict
from dataclasses import dataclass

LIFETIME_S = 3600
MAX_BYTES = 64 << 20
OVERHEAD_BYTES = 512  # of an answer beside its text: the id, the entry


@dataclass(frozen=True, slots=True)
class RememberedAnswer:
    """An answer's spoken words, and until when they are kept (Unix seconds)."""

    transcript: str
    expires_at: int

    @property
    def num_bytes(self) -> int:
        """Returns what it counts against the bound."""
        return OVERHEAD_BYTES + len(self.transcript.encode())


class AudioHistory:
    """The last answers of this server, in at most `max_bytes`; the oldest go first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._answers: OrderedDict[str, RememberedAnswer] = OrderedDict()

    def remember(self, audio_id: str, answer: RememberedAnswer) -> None:
        """Keep an answer under a new id; what has expired goes."""
        self._answers[audio_id] = answer
        self._num_bytes += answer.num_bytes
        while self._answers and (self._num_bytes > self._max_bytes or self._is_oldest_expired()):
            _, oldest = self._answers.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def _is_oldest_expired(self) -> bool:
        return next(iter(self._answers.values())).expires_at <= time.time()

    def transcript(self, audio_id: str) -> str | None:
        """Returns what was said under this id, unless it is unknown or has expired."""
        answer = self._answers.get(audio_id)
        if answer is None or answer.expires_at <= time.time():
            return None
        return answer.transcript
