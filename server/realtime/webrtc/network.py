"""The network of calls: UDP ports of a range, and addresses that are announced to callers."""

import argparse
import asyncio
import errno
import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from omnistage.server.options.gateway import CallNetwork

ANY_PORT = 0


def arguments_of(network: CallNetwork) -> list[str]:
    """Return the arguments of the process of calls, which `network_of` reads."""
    given = [f"--address={one}" for one in network.addresses]
    if network.ports is not None:
        given.append(f"--ports={network.ports.start}-{network.ports.stop - 1}")
    return given


def network_of(arguments: Sequence[str]) -> CallNetwork:
    """Return the network that the process of calls was started for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=ports_of)
    parser.add_argument("--address", action="append", default=[])
    read = parser.parse_args(arguments)
    return CallNetwork(read.ports, tuple(read.address))


def ports_of(text: str) -> range:
    """Return the ports of a range such as 50000-50100, or of one port; raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not a range of ports such as 50000-50100")
    ports = range(int(found[1]), int(found[2] or found[1]) + 1)
    if not ports or ports.start < 1024 or ports.stop > 1 << 16:
        raise ValueError(f"{text!r} must be a range from 1024 to 65535, the lower port first")
    return ports


class CallLoop(asyncio.SelectorEventLoop):
    """An event loop whose UDP sockets on any free port get one of a range, in turn.

    ICE binds a socket per address of this machine and call, and asks for no port.
    """

    def __init__(self, ports: range) -> None:
        super().__init__()
        self._ports = ports
        self._next = 0

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Any, local_addr: Any = None, **more: Any
    ) -> Any:
        """Bind a socket; raises OSError with EADDRINUSE if all ports of the range are taken."""
        make = super().create_datagram_endpoint
        if local_addr is None or local_addr[1] != ANY_PORT:
            return await make(protocol_factory, local_addr, **more)
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            try:
                return await make(protocol_factory, (local_addr[0], port), **more)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        low, high = self._ports[0], self._ports[-1]
        raise OSError(errno.EADDRINUSE, f"no UDP port from {low} to {high} is free")


def announced(sdp: str, addresses: Sequence[str]) -> str:
    """Return a description with addresses in place of the host's own, of the same IP version.

    Own addresses of a version of which none is announced stay.
    """
    lines: list[str] = []
    for line in sdp.splitlines():
        fields = line.split(" ")
        place = 4 if line.startswith("a=candidate:") else 2 if line.startswith("c=IN IP") else None
        if place is None:
            made = [line]
        else:
            version = ip_address(fields[place]).version
            others = [one for one in addresses if ip_address(one).version == version]
            made = [
                " ".join([*fields[:place], one, *fields[place + 1 :]])
                for one in others or [fields[place]]
            ]
        lines += made if place == 4 else made[:1]
    return "".join(f"{line}\r\n" for line in lines)
