"""The reports on a stage's process that an importer forks: it runs, and it has ended."""

import msgspec


class Forked(msgspec.Struct, frozen=True, tag=True):
    """It runs in a session of its own, by this id."""

    process: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """It has ended: its exit code, or less than 0 for a signal."""

    code: int


def encode(message: Forked | Exited) -> bytes:
    """Encode a message for the socket."""
    return msgspec.json.encode(message)


def decode(message: bytes) -> Forked | Exited:
    """Decode what came from the socket."""
    decoded: Forked | Exited = msgspec.json.decode(message, type=Forked | Exited)
    return decoded
