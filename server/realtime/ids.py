"""Names of sessions, items, responses, calls and events."""

import secrets
import string

ALPHABET = string.ascii_letters + string.digits
LENGTH = 21


def new_id(kind: str) -> str:
    """Make an unguessable id such as `item_…`; it has at most 32 characters.

    LiveKit shortens longer ones in what it sends back.
    """
    return f"{kind}_{''.join(secrets.choice(ALPHABET) for _ in range(LENGTH))}"
