"""The part of an interrupted answer that was played: its words against its audio."""

from dataclasses import dataclass, field

CLAMPED_MS = 100  # an end so little behind the length is the length: clients round
FIRST_WIDE = 0x2E80  # from here on, letters stand for words or syllables


@dataclass(slots=True)
class PlayedAnswer:
    """The words and the length of one answer's audio, as far as they were sent."""

    pieces: list[str] = field(default_factory=list)
    ms: float = 0.0
    heard_ms: float | None = None  # where it was truncated

    @property
    def sent_words(self) -> str:
        """Return all words that were sent."""
        return "".join(self.pieces)

    @property
    def kept_ms(self) -> float:
        """Return the length of what a client plays of it, after a truncation."""
        return self.ms if self.heard_ms is None else min(self.heard_ms, self.ms)

    @property
    def is_cut(self) -> bool:
        """Returns whether some of its audio was not heard."""
        return self.heard_ms is not None and self.heard_ms < self.ms

    @property
    def words(self) -> str:
        """Return the words; after a truncation those that were heard."""
        text = self.sent_words
        if self.heard_ms is None or not self.is_cut:
            return text
        return text[: _end_of_word(text, int(len(text) * self.heard_ms / self.ms))]

    def truncate(self, end_ms: float) -> None:
        """Keep what was heard until then; a later end changes nothing.

        What is sent afterwards counts as not heard.
        """
        before_ms = self.ms if self.heard_ms is None else self.heard_ms
        self.heard_ms = min(before_ms, end_ms)

    def allows(self, end_ms: float) -> bool:
        """Returns whether it is long enough to end there."""
        return end_ms <= self.ms + CLAMPED_MS


def _end_of_word(text: str, at: int) -> int:
    """Return the last end of a word that is not behind a place."""
    while 0 < at < len(text) and _are_joined(text[at - 1], text[at]):
        at -= 1
    return len(text[:at].rstrip())


def _are_joined(one: str, other: str) -> bool:
    return not (one.isspace() or other.isspace()) and max(ord(one), ord(other)) < FIRST_WIDE
