"""Spoken answers by id, so that a later turn can name one instead of repeating it."""

import time
from collections import OrderedDict
from dataclasses import dataclass

LIFETIME_S = 3600
MAX_ANSWERS = 10_000


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """What was said, and until when it is remembered (Unix seconds)."""

    transcript: str
    expires_at: int


class AudioHistory:
    """The last answers of this server; the oldest go first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, SpokenAnswer] = OrderedDict()

    def remember(self, audio_id: str, answer: SpokenAnswer) -> None:
        """Keep an answer."""
        self._answers[audio_id] = answer
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def transcript(self, audio_id: str) -> str | None:
        """What was said under this id, unless it is unknown or has expired."""
        answer = self._answers.get(audio_id)
        if answer is None or answer.expires_at <= time.time():
            return None
        return answer.transcript
