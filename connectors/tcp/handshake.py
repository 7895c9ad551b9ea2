"""How two links convince each other that they know the run's secret.

It is the three-pass mutual authentication with a keyed hash of ISO/IEC 9798-4, with HMAC-SHA-256:
each side has chosen a random number, and each proves to know the secret by the hash of both numbers
and the names. What is read before that has a fixed size, so a stranger can make nobody wait for
more, or make room for more. The secret itself never travels. It must be random: whoever hears a
proof may try secrets against it.
"""

import hmac
import secrets
import struct
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"omnistage link 1"
NONCE_BYTES = 32
MIN_SECRET_BYTES = 16
IDENTITY = struct.Struct("64s16s")  # name, boot
PROOF_BYTES = 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + IDENTITY.size + PROOF_BYTES
CLOSING_BYTES = IDENTITY.size + PROOF_BYTES
BOOT = Path("/proc/sys/kernel/random/boot_id")

# Yields what to send and how many bytes to read next; gets those; returns who the peer is.
Handshake = Generator[tuple[bytes, int], bytes, "Identity"]


class Stranger(Exception):
    """The other side does not know the secret, or is no link."""


class Identity(NamedTuple):
    """A node: its name, and the start of its machine since which its clock runs."""

    name: str
    boot: bytes

    def pack(self) -> bytes:
        """Encodes the message for the wire."""
        return IDENTITY.pack(self.name.encode(), self.boot)


def own_identity(name: str) -> Identity:
    """This node's; raises ValueError for a name that is too long."""
    if not name or len(name.encode()) > 64:
        raise ValueError(f"a node's name has 1 to 64 bytes, unlike {name!r}")
    return Identity(name, uuid.UUID(BOOT.read_text().strip()).bytes)


def new_secret() -> bytes:
    """A secret for the links of one run."""
    return secrets.token_bytes(32)


def accept(secret: bytes, own: Identity) -> Handshake:
    """The side that was connected to."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    answer = yield MAGIC + nonce, ANSWER_BYTES
    theirs, packed, proof = (
        answer[:NONCE_BYTES],
        answer[NONCE_BYTES:-PROOF_BYTES],
        answer[-PROOF_BYTES:],
    )
    said = nonce + theirs + packed
    check(proof, prove(secret, b"connects", said))
    yield own.pack() + prove(secret, b"accepts", said + own.pack()), 0
    return unpack(packed)


def connect(secret: bytes, own: Identity) -> Handshake:
    """The side that connects."""
    greeting = yield b"", GREETING_BYTES
    if not greeting.startswith(MAGIC):
        raise Stranger("it is no link")
    nonce = secrets.token_bytes(NONCE_BYTES)
    said = greeting[len(MAGIC) :] + nonce + own.pack()
    closing = yield nonce + own.pack() + prove(secret, b"connects", said), CLOSING_BYTES
    packed, proof = closing[:-PROOF_BYTES], closing[-PROOF_BYTES:]
    check(proof, prove(secret, b"accepts", said + packed))
    return unpack(packed)


def prove(secret: bytes, role: bytes, said: bytes) -> bytes:
    """That whoever has this role knows the secret."""
    return hmac.digest(secret, role + said, "sha256")


def check(proof: bytes, wanted: bytes) -> None:
    """Raise Stranger for a proof that is none, after the same time for each."""
    if not hmac.compare_digest(proof, wanted):
        raise Stranger("it does not know the run's secret")


def unpack(packed: bytes) -> Identity:
    """Who a peer that has proved itself is."""
    name, boot = IDENTITY.unpack(packed)
    return Identity(name.rstrip(b"\0").decode(errors="replace"), boot)
