"""The interface of an encoder of one answer's samples."""

from typing import Protocol


class AudioEncoder(Protocol):
    """Makes one file, also of no samples: then `finish` returns all of it."""

    is_slow: bool
    """Takes longer than an event loop should: call it in a thread."""

    def encode(self, pcm: bytes) -> bytes:
        """Encode whole samples; what is ready of the file comes back."""

    def finish(self) -> bytes:
        """The rest of the file."""
