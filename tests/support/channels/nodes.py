"""Two nodes of a run, as two run directories with a link each on the loopback."""

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from support.channels.notes import NOTES, Note

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.options import Option
from omnistage.connectors.tcp.connector import TcpOptions
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.node_link import End, NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, LinkSettings, PeerLost, PeerUp, Trouble

LOOPBACK = "127.0.0.1"
WITHIN_S = 600.0
# Where silence is not the subject nobody counts as silent, however busy the machine is.
PATIENT = LinkSettings(secret=new_secret(), patience_s=600, handshake_s=600)
Happened = PeerUp | PeerLost | LinkEnded | Trouble
H = TypeVar("H", PeerUp, PeerLost, LinkEnded, Trouble)


class Node:
    """A node: its run directory and its link, with all that was heard of it."""

    def __init__(self, name: str, directory: Path, settings: LinkSettings) -> None:
        self.directory = directory
        directory.mkdir()
        self.link = NodeLink(name, directory, settings)
        self.heard: list[Happened] = []

    def wait_for(self, kind: type[H], within_s: float = WITHIN_S) -> H:
        """The first event of this kind from now on; it is forgotten with all before it."""
        deadline = time.monotonic() + within_s
        while True:
            self.heard += self.link.events()
            for number, event in enumerate(self.heard):
                if isinstance(event, kind):
                    del self.heard[: number + 1]
                    return event
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no {kind.__name__} of {self.link.name}: {self.heard}"
            select.select([self.link], [], [], left_s)


class Nodes:
    """Node one sends to node two; each is told of the other's port, or of another one."""

    def __init__(self, folder: Path, first: LinkSettings, second: LinkSettings) -> None:
        self.one, self.two = Node("one", folder / "1", first), Node("two", folder / "2", second)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in (self.one, self.two):
            node.link.close()

    def meet(self, port: int | None = None) -> Self:
        """Have them connect, and wait until they are."""
        self.introduce(port)
        self.one.wait_for(PeerUp)
        self.two.wait_for(PeerUp)
        return self

    def introduce(self, port: int | None = None) -> None:
        """Have them connect: one to two, at this port."""
        self.one.link.meet("two", LOOPBACK, self.two.link.port if port is None else port)
        self.two.link.meet("one", LOOPBACK, self.one.link.port)

    def create(self, address: str, **options: int) -> None:
        """Make both rings."""
        self.one.link.create(address, "two", End.SENDER, TcpOptions(**options))
        self.two.link.create(address, "one", End.RECEIVER, TcpOptions(**options))

    def ends(self, address: str, **options: Option) -> tuple[Sender, Receiver[Note]]:
        """Open both ends, each on its node."""
        receiver = make_connector("tcp", self.two.directory, options).receiver(address, NOTES)
        return self.sender(address, **options), receiver

    def sender(self, address: str, **options: Option) -> Sender:
        """Open the sending end."""
        return make_connector("tcp", self.one.directory, options).sender(address)


def chunk(request_id: str = "a", index: int = 0, size: int = 8, last: bool = False) -> Chunk[Note]:
    """One whose bytes say which it is."""
    values = np.full(size, index % 251, np.uint8)
    return Chunk(request_id, Note(), index, {"v": Tensor.from_numpy(values)}, last)


def read_all(connected: socket.socket, num_bytes: int) -> bytes:
    """So many bytes, in however many parts they come; MSG_WAITALL waits for none with a timeout."""
    read = b""
    while len(read) < num_bytes:
        more = connected.recv(num_bytes - len(read))
        assert more, "the connection has ended"
        read += more
    return read


def received(receiver: Receiver[Note], within_s: float = WITHIN_S) -> Chunk[Note]:
    """The next chunk, which comes in time."""
    deadline = time.monotonic() + within_s
    while (got := receiver.receive()) is None:
        left_s = deadline - time.monotonic()
        assert left_s > 0, "no chunk came"
        receiver.wait(left_s)
    return got


def nothing_comes(receiver: Receiver[Note], for_s: float = 0.3) -> bool:
    """Whether no chunk comes for so long."""
    deadline = time.monotonic() + for_s
    while (left_s := deadline - time.monotonic()) > 0:
        if receiver.receive() is not None:
            return False
        receiver.wait(left_s)
    return True


class Recorder:
    """Stands between two links, and keeps what they say to each other."""

    def __init__(self, port: int) -> None:
        self.heard = b""
        self._target = LOOPBACK, port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass_on, args=(source, sink))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while said := source.recv(1 << 16):
                self.heard += said
                sink.sendall(said)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all that passes."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()


def stays(condition: Callable[[], bool], for_s: float) -> bool:
    """Whether something holds all the while."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(0.01)
    return True
