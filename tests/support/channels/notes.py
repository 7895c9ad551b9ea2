"""A message for tests of connectors: they carry any, and know none."""

from typing import Any

import msgspec

from omnistage.connectors.messages import Message, Messages


class Note(Message, frozen=True):
    """Says whatever a test wants."""

    text: str = ""
    more: dict[str, Any] = msgspec.field(default_factory=dict)


NOTES: Messages[Note] = Messages(Note)
