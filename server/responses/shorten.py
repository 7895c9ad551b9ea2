"""Leaves out the oldest turns of a conversation that is too long, for `truncation: "auto"`."""

import json
from collections.abc import Sequence

from omnistage.server.responses.items import Message

PART = 5  # a fifth of the conversation goes at a time


def turns_to_drop(messages: Sequence[Message]) -> range:
    """Return the messages that go next: whole turns, from the oldest on; none can go if empty.

    System messages at the start stay, and so does the last turn. A turn begins with a message of
    the user, so that a call and its output go together.
    """
    roles = [message["role"] for message in messages]
    fixed = next((at for at, role in enumerate(roles) if role not in ("system", "developer")), 0)
    starts = [at for at, role in enumerate(roles) if role == "user" and at > fixed]
    sizes = [len(json.dumps(message)) for message in messages[fixed:]]
    least = sum(sizes) / PART
    for start in starts:
        if sum(sizes[: start - fixed]) >= least:
            return range(fixed, start)
    return range(fixed, max(starts, default=fixed))
