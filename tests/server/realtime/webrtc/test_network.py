"""Ports and addresses of calls: read, bound within their range, announced in place of others."""

import asyncio
import socket

import pytest

from omnistage.server.options.gateway import CallNetwork
from omnistage.server.realtime.webrtc.network import (
    CallLoop,
    announced,
    arguments_of,
    network_of,
    ports_of,
)


@pytest.mark.parametrize(
    "network",
    [
        CallNetwork(),
        CallNetwork(range(50_000, 50_101)),
        CallNetwork(range(50_000, 50_001), ("203.0.113.7", "2001:db8::7")),
    ],
)
def test_the_process_of_calls_reads_its_arguments(network: CallNetwork) -> None:
    assert network_of(arguments_of(network)) == network


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("50000-50100", range(50_000, 50_101)),
        ("50000", range(50_000, 50_001)),
        ("1024-65535", range(1024, 65_536)),
    ],
)
def test_a_range_of_ports_is_read_with_its_end(text: str, ports: range) -> None:
    assert ports_of(text) == ports


@pytest.mark.parametrize("text", ["-", "a-b", "50000-", "-50000", "1023-2000", "5-4", "65536", ""])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        ports_of(text)


def test_sockets_take_ports_of_the_range_in_turn_and_not_those_that_are_taken() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ports = range(port - 2, port + 3)
        with asyncio.Runner(loop_factory=lambda: CallLoop(ports)) as runner:
            runner.run(take_all(ports, port))


async def take_all(ports: range, taken: int) -> None:
    loop = asyncio.get_running_loop()
    got: list[int] = []
    opened: list[asyncio.DatagramTransport] = []
    full = ""
    while not full:
        try:
            made, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
            )
        except OSError as error:
            full = str(error)
        else:
            opened.append(made)
            got.append(made.get_extra_info("sockname")[1])
    assert f"no UDP port from {ports[0]} to {ports[-1]} is free" in full
    assert got
    assert len(got) == len(set(got))
    assert set(got) <= set(ports) - {taken}  # others may have some of the rest
    named, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=("127.0.0.1", taken)
    )
    assert named.get_extra_info("sockname")[1] not in ports
    for one in (*opened, named):
        one.close()


SDP = """v=0
c=IN IP4 10.0.0.2
a=candidate:1 1 udp 2130706431 10.0.0.2 50000 typ host
a=candidate:2 1 udp 2130706431 fd00::2 50001 typ host
a=ice-ufrag:x
""".replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("addresses", "default", "candidates"),
    [
        ((), "10.0.0.2", [("10.0.0.2", 50_000), ("fd00::2", 50_001)]),
        (("203.0.113.7",), "203.0.113.7", [("203.0.113.7", 50_000), ("fd00::2", 50_001)]),
        (("2001:db8::7",), "10.0.0.2", [("10.0.0.2", 50_000), ("2001:db8::7", 50_001)]),
        (
            ("203.0.113.7", "10.0.0.9"),
            "203.0.113.7",
            [("203.0.113.7", 50_000), ("10.0.0.9", 50_000), ("fd00::2", 50_001)],
        ),
    ],
)
def test_addresses_are_announced_in_place_of_those_of_their_version(
    addresses: tuple[str, ...], default: str, candidates: list[tuple[str, int]]
) -> None:
    lines = announced(SDP, addresses).split("\r\n")
    assert f"c=IN IP4 {default}" in lines
    found = [line.split() for line in lines if line.startswith("a=candidate:")]
    assert [(one[4], int(one[5])) for one in found] == candidates
    assert all(one[6:] == ["typ", "host"] for one in found)
    kept = [line for line in lines if not line.startswith(("a=candidate:", "c="))]
    assert kept == ["v=0", "a=ice-ufrag:x", ""]
