"""The command of a stage's process, and the reports on one that an importer forks."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec


def worker_command(stages: Sequence[str], directory: Path, parent: int) -> list[str]:
    """Returns what starts a stage's process, or an importer for several, below this parent."""
    worker = [sys.executable, "-m", "omnistage.stages.worker.worker", "--stage", *stages]
    return [*worker, "--run-directory", str(directory), "--parent", str(parent)]


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Tells that the process runs, in a session of its own, by this id."""

    process: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """Tells how the process ended: its exit code, or less than 0 for a signal."""

    code: int


def encode(message: Forked | Exited) -> bytes:
    """Encode a message for the socket."""
    return msgspec.json.encode(message)


def decode(message: bytes) -> Forked | Exited:
    """Decode what came from the socket."""
    decoded: Forked | Exited = msgspec.json.decode(message, type=Forked | Exited)
    return decoded
