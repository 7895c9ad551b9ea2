"""A connection may end at any moment of its beginning: what waits at a sender is not lost then."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.channels.nodes import LOOPBACK, PATIENT, Node, read_all
from support.waiting import wait_until

from omnistage.connectors.ring import RING_START
from omnistage.connectors.tcp.connector import TcpOptions
from omnistage.connectors.tcp.frames import (
    BEAT,
    DATA,
    FRAME,
    JOIN,
    JOINED,
    JOINING,
    PLACE,
    READINGS,
    frame,
)
from omnistage.connectors.tcp.handshake import (
    CLOSING_BYTES,
    GREETING_BYTES,
    Identity,
    connect,
)
from omnistage.connectors.tcp.node_link import End
from omnistage.connectors.tcp.orders import PeerLost
from omnistage.connectors.tcp.rings import ring_name

SIZE = 1 << 20
RECORD = b"a record"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Node two, which has the receiver of a channel from node one."""
    node = Node("two", tmp_path / "two", PATIENT)
    node.link.meet("one", LOOPBACK, 1)
    node.link.create("c", "one", End.RECEIVER, TcpOptions(arena_mb=1))
    yield node
    node.link.close()


class Sending:
    """A connection from node one, on a machine of its own."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        side = connect(PATIENT.secret, Identity("one", bytes(16)))
        next(side)
        connected.sendall(side.send(self._read(GREETING_BYTES))[0])
        self._read(CLOSING_BYTES)

    def join(self, generation: int) -> int:
        """Name the channel, whose ring has this generation here; which one it has there."""
        self._socket.sendall(frame(JOIN, 1, generation, JOINING.pack(SIZE) + b"c"))
        return self._await(JOINED)[0]

    def fill(self, generation: int) -> None:
        """Send bytes of the ring."""
        self._socket.sendall(frame(DATA, 1, generation, PLACE.pack(0) + RECORD))

    def be_up(self) -> None:
        """Let the node reckon with the clock here."""
        sent_ns = READINGS.unpack(self._await(BEAT)[1])[0]
        self._socket.sendall(frame(BEAT, body=READINGS.pack(2, sent_ns, 1)))

    def _await(self, wanted: int) -> tuple[int, bytes]:
        """The generation and the body of the next frame of a kind."""
        while True:
            kind, _, generation, size = FRAME.unpack(self._read(FRAME.size))
            body = self._read(size)
            if kind == wanted:
                return generation, body

    def _read(self, num_bytes: int) -> bytes:
        return read_all(self._socket, num_bytes)


@contextmanager
def sending_to(node: Node) -> Iterator[Sending]:
    with socket.create_connection((LOOPBACK, node.link.port), 60) as connected:
        yield Sending(connected)


def test_a_ring_that_was_joined_and_not_filled_is_the_same_after_a_loss(node: Node) -> None:
    """Its sender may never have heard that it was joined, and keeps what it holds."""
    for _ in range(2):
        with sending_to(node) as one:
            assert one.join(0) == 0


def test_a_ring_that_was_not_filled_follows_its_senders_to_a_new_one(node: Node) -> None:
    """The sender heard that it was joined, and gave up what it had when the connection ended."""
    with sending_to(node) as one:
        assert one.join(0) == 0
    with sending_to(node) as one:
        assert one.join(1) == 1


def test_a_ring_that_was_filled_is_another_after_a_loss_that_is_told(node: Node) -> None:
    with sending_to(node) as one:
        one.be_up()
        assert one.join(0) == 0
        one.fill(0)
        ring = node.directory / ring_name("c", is_senders=False)
        wait_until(lambda: ring.read_bytes()[RING_START:].startswith(RECORD))
    assert node.wait_for(PeerLost).peer == "one"
    with sending_to(node) as one:
        assert one.join(0) == 1
