"""A connector whose every call returns when the links have carried all there is to carry.

So a test that was written for one ring holds for two that are joined.
"""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.contract import ChannelUsage, Connector, NoChannel, Receiver, Sender
from omnistage.connectors.messages import M, Messages
from omnistage.connectors.options import Option
from omnistage.connectors.ring import FIRST_SLOT, HEAD, TAIL, Ring
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp.rings import ring_name

WITHIN_S = 600.0
CHANGING = ("send", "offer", "flush", "forget", "receive", "grant")


def settled_connector(name: str, directory: Path, options: dict[str, Option]) -> Connector:
    """One by name; `tcp` waits for its links."""
    made = make_connector(name, directory, options)
    return Settled(made, directory) if name == "tcp" else made


class Settled:
    """The connector itself, and a wait after each call."""

    def __init__(self, connector: Connector, directory: Path) -> None:
        self._connector = connector
        self._rings = ShmConnector(directory)

    def create(self, address: str) -> None:
        """Make a channel, and have it joined."""
        self._connector.create(address)
        self._settle(address)

    def sender(self, address: str) -> Sender:
        """An end whose changes have arrived when its methods return."""
        sender: Sender = self._settling(self._connector.sender(address), address)
        return sender

    def receiver(self, address: str, messages: Messages[M]) -> Receiver[M]:
        """The same."""
        opened = self._connector.receiver(address, messages)
        receiver: Receiver[M] = self._settling(opened, address)
        return receiver

    def renew(self, address: str) -> None:
        """Empty a channel, and have it joined again."""
        self._connector.renew(address)
        self._settle(address)

    def usage(self, address: str) -> ChannelUsage:
        return self._connector.usage(address)

    def destroy(self, address: str) -> None:
        """Remove a channel."""
        self._connector.destroy(address)

    def _settling(self, end: Any, address: str) -> Any:
        def settling(method: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(method)
            def call(*arguments: Any) -> Any:
                result = method(*arguments)
                self._settle(address)
                return result

            return call

        for name in CHANGING:
            if hasattr(end, name):
                setattr(end, name, settling(getattr(end, name)))
        return end

    def _settle(self, address: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        try:
            while not self._is_settled(address):
                assert time.monotonic() < deadline, f"the links carry nothing of {address}"
                time.sleep(0.0001)
        except NoChannel:
            return

    def _is_settled(self, address: str) -> bool:
        near, far = (self._rings.ring(ring_name(address, end)) for end in (True, False))
        if not (near.is_joined and far.is_joined and near.generation == far.generation):
            return False
        if near._words[HEAD] != far._words[HEAD] or granted(near) != granted(far):
            return False
        if near._words[TAIL] == far._words[TAIL]:
            return True
        for event in self._rings.access(ring_name(address, False))[1:3]:
            event.set()  # a receiver tells of what it has read when it finds no more
            event.close()
        return False


def granted(ring: Ring) -> bytes:
    """What the receiver has given back."""
    return ring._words[FIRST_SLOT:].tobytes()
