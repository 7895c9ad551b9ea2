"""Ports for servers that a test starts: nothing else takes one between its choice and its use."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"
FIRST, PART = 20_000, 1_000  # the processes of a parallel run have a part each, below the kernel's
NUM_PARTS = 10

_given = itertools.count(os.getpid())  # another run on this machine begins elsewhere


def free_port() -> int:
    """A port on which nobody listens; each is given out once.

    One that the kernel chose would be anybody's again until the server has it: the kernel gives
    it to the next connection or socket of any process.
    """
    for _ in range(PART):
        port = _first_of_part() + next(_given) % PART
        if _is_free(port):
            return port
    raise OSError(f"no port is free from {_first_of_part()}")


@contextmanager
def refusing_port() -> Iterator[int]:
    """One that refuses connections: it is taken, but nobody listens."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        yield taken.getsockname()[1]


def _first_of_part() -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw-1").removeprefix("gw")) + 1
    return FIRST + worker % NUM_PARTS * PART


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
