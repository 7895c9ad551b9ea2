"""Messages between a link and the process that owns it."""

import socket

import msgspec


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's link finds its peers and knows them.

    `secret`: the run's, the same on all of its nodes. `host`, `port`: where it listens; port 0 is
    any free one. `certificate`, `key`: files in PEM, the same on all nodes: then all is encrypted;
    a link reads them when it starts. `beat_s`: how often links say that they live; `patience_s`:
    how long a peer may say nothing; `handshake_s`: how long one that connects may take to prove
    that it knows the secret.
    """

    secret: bytes
    host: str = "127.0.0.1"
    port: int = 0
    certificate: str = ""
    key: str = ""
    beat_s: float = 0.5
    patience_s: float = 1.5
    handshake_s: float = 2.0


class Meet(msgspec.Struct, frozen=True, tag=True):
    """There is a peer, which is to be connected to or which connects."""

    peer: str
    host: str
    port: int
    connects: bool


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Have nothing more to do with a peer."""

    peer: str


class OpenHalf(msgspec.Struct, frozen=True, tag=True):
    """Join a ring of this node, `directory`/`ring`, to the peer's ring of this name."""

    address: str
    name: str
    peer: str
    sends: bool
    directory: str
    ring: str


class CloseHalf(msgspec.Struct, frozen=True, tag=True):
    """Let go of a ring; with `is_awaited`, a byte over the link's third socket says when."""

    address: str
    is_awaited: bool = False


class Begin(msgspec.Struct, frozen=True):
    """Everything that a link needs to know at its start: a file, as it may be long."""

    name: str
    settings: LinkSettings
    peers: tuple[Meet, ...]
    halves: tuple[OpenHalf, ...]


Order = Meet | Leave | OpenHalf | CloseHalf


class PeerUp(msgspec.Struct, frozen=True, tag=True):
    """A peer is connected; its monotonic clock is so far ahead of ours."""

    peer: str
    clock_ahead_ns: int


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """A peer was connected and is no longer; the rings of all channels to it are new, or empty.

    `is_silent`: its link or its node hangs, or the network between: whoever owns the link may
    `restart` it. Otherwise the link has ended.
    """

    peer: str
    why: str
    is_silent: bool = False


class LinkEnded(msgspec.Struct, frozen=True, tag=True):
    """This node's own link has ended: all its peers are lost. It has been started again."""

    why: str
    is_final: bool = False


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """Something for the log: who is refused, what cannot be joined."""

    text: str


class LinkStarted(msgspec.Struct, frozen=True, tag=True):
    """The link runs."""


Event = PeerUp | PeerLost | LinkEnded | Trouble | LinkStarted

MAX_BYTES = 1 << 20
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
BEGIN: msgspec.msgpack.Decoder[Begin] = msgspec.msgpack.Decoder(Begin)
EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def new_channel() -> tuple[socket.socket, socket.socket]:
    """Two ends of a socket that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encoded(message: Begin | Order | Event) -> bytes:
    """Encodes the message for the wire."""
    return msgspec.msgpack.encode(message)
