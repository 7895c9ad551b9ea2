"""Stamped connections over real sockets."""

import asyncio
import socket

import httpcore
import pytest
from support.ports import refusing_port
from support.virtual_time import run_virtual

from omnistage.bench.network import StampedNetwork, StampedStream


class Peer:
    """The other end of a connection."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.put_nowait(writer)
        await reader.read()
        writer.close()


async def connect(peer: Peer) -> tuple[asyncio.Server, StampedStream, asyncio.StreamWriter]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stream = await StampedNetwork().connect_tcp("127.0.0.1", port)
    return server, stream, await peer.accepted.get()


def test_bytes_are_stamped_when_they_come_not_when_they_are_read() -> None:
    async def run() -> list[tuple[bytes, float]]:
        stream = StampedStream()
        loop = asyncio.get_running_loop()
        loop.call_at(1.0, stream.data_received, b"abcdef")
        loop.call_at(2.0, stream.data_received, b"gh")
        await asyncio.sleep(3.0)
        return [(await stream.read(4), stream.read_s) for _ in range(3)]

    assert run_virtual(run()) == [(b"abcd", 1.0), (b"ef", 1.0), (b"gh", 2.0)]


async def test_a_write_is_stamped_before_it_leaves() -> None:
    server, stream, _ = await connect(Peer())
    before_s = asyncio.get_running_loop().time()
    await stream.write(b"hello")
    assert before_s <= stream.written_s <= asyncio.get_running_loop().time()
    await stream.aclose()
    server.close()


async def test_a_closed_connection_is_readable_ends_and_takes_no_more() -> None:
    server, stream, writer = await connect(Peer())
    assert not stream.get_extra_info("is_readable")
    writer.write(b"last")
    writer.close()
    assert await stream.read(100) == b"last"
    assert await stream.read(100) == b""
    assert await stream.read(100) == b""
    assert stream.get_extra_info("is_readable")
    with pytest.raises(httpcore.WriteError, match="closed"):
        await stream.write(b"more")
    server.close()


async def test_a_broken_connection_is_an_error() -> None:
    server, stream, writer = await connect(Peer())
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
    )
    writer.transport.abort()
    with pytest.raises(httpcore.ReadError, match="reset"):
        await stream.read(100)
    server.close()


async def test_a_refused_connection_is_an_error() -> None:
    with (
        refusing_port() as port,
        pytest.raises(httpcore.ConnectError, match="Connect call failed"),
    ):
        await StampedNetwork().connect_tcp("127.0.0.1", port)
