"""Calls by WebRTC to a server that is reached by a published range of ports of another address."""

import asyncio
import ipaddress
import socket
from pathlib import Path

import pytest
from support.gateway.serving import MODEL, OMNI, running_gateway

pytest.importorskip("aiortc", reason="the extra omnistage[webrtc] is not installed")

from aiortc import RTCSessionDescription
from support.realtime.udp_relay import relaying
from support.realtime.webrtc import Caller

from omnistage.server.options.gateway import CallNetwork

PUBLIC = "127.0.0.7"  # where callers find the server; none of its own addresses
NUM_PORTS = 20
SESSION = {"type": "realtime", "model": MODEL}

pytestmark = pytest.mark.usefixtures("by_loudness")


def free_range() -> range:
    """Ports that nobody has on any address."""
    for low in range(30_000, 32_000, NUM_PORTS):
        taken = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(NUM_PORTS)]
        try:
            for number, one in enumerate(taken):
                one.bind(("::", low + number))  # of IPv4, too
        except OSError:
            continue
        finally:
            for one in taken:
                one.close()
        return range(low, low + NUM_PORTS)
    pytest.skip("no range of UDP ports is free")


def own_address() -> str:
    """Return the address of this machine's interface that leads elsewhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


def candidates_of(sdp: str) -> list[list[str]]:
    return [line.split() for line in sdp.splitlines() if line.startswith("a=candidate:")]


def with_candidates(sdp: str, kept: list[list[str]]) -> str:
    """Return a description with some of its candidates; without one, as if others may come."""
    lines = sdp.splitlines()
    found = [one for one in lines if not one.startswith("a=candidate:") or one.split() in kept]
    if not kept:
        found = [one for one in found if one != "a=end-of-candidates"]
    return "".join(f"{line}\r\n" for line in found)


async def test_a_call_is_carried_by_the_announced_address_and_published_ports(
    tmp_path: Path,
) -> None:
    """The offer has no candidates, so that the server knows no way to the caller but its own."""
    ports = free_range()
    network = CallNetwork(ports, (PUBLIC,))
    with running_gateway(tmp_path, OMNI, calls=network) as gateway:
        async with relaying(PUBLIC, own_address(), ports) as relays:
            caller = Caller(gateway.url, {})
            try:
                offer = await caller.offer()
                answer = await caller.post(with_candidates(offer, []), SESSION)
                assert answer.status_code == 201, answer.text
                found = candidates_of(answer.text)
                assert found
                assert all(int(one[5]) in ports for one in found)
                version_4 = [one for one in found if ipaddress.ip_address(one[4]).version == 4]
                assert {one[4] for one in version_4} == {PUBLIC}
                reachable = with_candidates(answer.text, version_4)
                told = RTCSessionDescription(reachable, "answer")
                await caller.peer.setRemoteDescription(told)
                await caller.until("session.created")
                await caller.write("endless")
                caller.say("response.create")
                await caller.until("output_audio_buffer.started")
                async with asyncio.timeout(600):
                    await caller.sounded.wait()
                # All of the caller's audio took the way of the announced address.
                assert sum(relay.num_packets for relay in relays) > len(caller.levels)
                caller.say("response.cancel")
                await caller.until("response.done")
            finally:
                await caller.close()


async def test_a_call_for_which_no_port_is_free_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
        taken.bind(("::", 0))
        port = taken.getsockname()[1]
        with running_gateway(tmp_path, OMNI, calls=CallNetwork(range(port, port + 1))) as gateway:
            caller = Caller(gateway.url, {})
            try:
                answer = await caller.post(await caller.offer(), SESSION)
            finally:
                await caller.close()
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "no_udp_port"
            gateway.wait_until_idle()
