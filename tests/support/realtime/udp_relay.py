"""A NAT's stand-in: the ports of one address lead to the same ports of another."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

Address = tuple[Any, ...]


class Relay(asyncio.DatagramProtocol):
    """One port: a socket per caller carries its packets inside and the answers back."""

    def __init__(self, inside: Address) -> None:
        self.num_packets = 0
        self._inside = inside
        self._outside: asyncio.DatagramTransport
        self._callers: dict[Address, asyncio.Future[asyncio.DatagramTransport]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outside = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if addr not in self._callers:
            self._callers[addr] = asyncio.ensure_future(self._opened(addr))
        self._callers[addr].add_done_callback(lambda opened: opened.result().sendto(data))
        self.num_packets += 1

    async def _opened(self, caller: Address) -> asyncio.DatagramTransport:
        back = Back(self._outside, caller)
        loop = asyncio.get_running_loop()
        return (await loop.create_datagram_endpoint(lambda: back, remote_addr=self._inside))[0]

    def close(self) -> None:
        self._outside.close()
        for opened in self._callers.values():
            opened.result().close()


class Back(asyncio.DatagramProtocol):
    """Sends answers to a caller, from the address that it knows."""

    def __init__(self, outside: asyncio.DatagramTransport, caller: Address) -> None:
        self._outside, self._caller = outside, caller

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._outside.sendto(data, self._caller)


@asynccontextmanager
async def relaying(outside: str, inside: str, ports: Iterable[int]) -> AsyncIterator[list[Relay]]:
    """Relay ports of one address to another until the context ends."""
    loop = asyncio.get_running_loop()
    relays: list[Relay] = []
    try:
        for port in ports:
            relay = Relay((inside, port))
            await loop.create_datagram_endpoint(lambda one=relay: one, local_addr=(outside, port))  # type: ignore[misc]
            relays.append(relay)
        yield relays
    finally:
        for relay in relays:
            relay.close()
