"""Ports for servers that a test starts: nothing else takes one between its choice and its use."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"

HELD: list[int] = []  # descriptors, open until this process ends: one for each port given out


def free_port() -> int:
    """A port that nobody else of this machine gets, on which nobody listens.

    A socket holds it without listening. Linux gives such a port to nobody who asks for any port
    or connects, and lets those bind it who name it with SO_REUSEADDR, as servers do.
    """
    held = socket.socket()
    held.bind((LOOPBACK, 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(held.getsockname()[1])
    HELD.append(held.detach())
    return port


@contextmanager
def refusing_port() -> Iterator[int]:
    """One that refuses connections: it is taken, but nobody listens."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        yield taken.getsockname()[1]
