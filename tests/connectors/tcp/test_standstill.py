"""Links of a machine that was paused for longer than they are patient."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from support.channels.nodes import LOOPBACK
from support.waiting import wait_until

from omnistage.connectors.tcp import connection, link
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.link import Link
from omnistage.connectors.tcp.orders import (
    EVENTS,
    MAX_BYTES,
    Begin,
    Event,
    LinkSettings,
    LinkStarted,
    Meet,
    PeerUp,
    new_channel,
)

SETTINGS = LinkSettings(secret=new_secret(), beat_s=0.05, patience_s=60)
PAUSE_S = 100.0


class Clock:
    """A clock that a test sets forward; none of its readers ran meanwhile."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.num_read = Counter[int]()  # by thread

    def monotonic(self) -> float:
        """Seconds."""
        self.num_read[threading.get_ident()] += 1
        return time.monotonic() + self.ahead_s

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        return int(1e9 * self.monotonic())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all links in this process."""
    clock = Clock()
    for module in (link, connection):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def owners(clock: Clock) -> Iterator[dict[str, socket.socket]]:
    """Two links in threads, and the owner's end of each."""
    with ExitStack() as stack:
        ports = {}
        listeners = {}
        owners = {}
        for name in ("one", "two"):
            listeners[name] = stack.enter_context(socket.create_server((LOOPBACK, 0)))
            ports[name] = listeners[name].getsockname()[1]
        for name, other in (("one", "two"), ("two", "one")):
            ours, theirs = new_channel()
            stack.enter_context(closing(theirs))
            meet = Meet(other, LOOPBACK, ports[other], connects=name < other)
            made = Link((theirs, listeners[name], theirs), Begin(name, SETTINGS, (meet,), ()))
            stack.callback(close, made)
            thread = threading.Thread(target=made.run)
            stack.callback(thread.join)
            owners[name] = stack.enter_context(closing(ours))
            ours.settimeout(600)
            thread.start()
        clock.num_read.clear()
        yield owners


def close(ended: Link) -> None:
    """Close what the end of its process closes."""
    for made in (*ended._strangers, *(one for _, one in ended._open())):
        made.close()
    ended._waiting.close()


def heard(owner: socket.socket) -> Event:
    return EVENTS.decode(owner.recv(MAX_BYTES))


def test_links_that_stood_still_lose_nobody(clock: Clock, owners: dict[str, socket.socket]) -> None:
    for owner in owners.values():
        assert isinstance(heard(owner), LinkStarted)
        assert isinstance(heard(owner), PeerUp)
    for _ in range(3):
        clock.num_read.clear()
        clock.ahead_s += PAUSE_S
        wait_until(lambda: len(clock.num_read) == 2 and min(clock.num_read.values()) > 20)
    for owner in owners.values():
        owner.setblocking(False)
        with pytest.raises(BlockingIOError):
            owner.recv(MAX_BYTES)
