"""Connections that know when their bytes came and went, for httpcore.

An arrival is stamped as the event loop takes it from the socket. Whoever parses it may be busy with
other answers; the stamp does not wait for that.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable

import httpcore


class StampedStream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection. `read_s` is when the bytes of the last read came, `written_s` when the last
    write went out, on the loop's clock. Timeouts are the caller's.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._pieces: deque[tuple[bytes, float]] = deque()
        self._coming = asyncio.Event()
        self._lost = asyncio.Event()
        self._error: Exception | None = None
        self.read_s = self.written_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: it is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        self._pieces.append((data, self._loop.time()))
        self._coming.set()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's: it is closed, by `error` or in good order."""
        self._error = error
        self._lost.set()
        self._coming.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """The next bytes that came; none at the end."""
        await self._coming.wait()
        if self._pieces:
            data, self.read_s = self._pieces.popleft()
            if len(data) > max_bytes:
                self._pieces.appendleft((data[max_bytes:], self.read_s))
            if not self._pieces and not self._lost.is_set():
                self._coming.clear()
            return data[:max_bytes]
        if self._error is not None:
            raise httpcore.ReadError(str(self._error)) from self._error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send; the system's buffers take what they can, the loop the rest."""
        if self._lost.is_set():
            raise httpcore.WriteError(f"the connection is closed: {self._error}")
        if buffer:
            self.written_s = self._loop.time()
            self._transport.write(buffer)

    async def aclose(self) -> None:
        """Close at once."""
        self._transport.abort()
        await self._lost.wait()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> "StampedStream":
        """Go on encrypted."""
        try:
            async with asyncio.timeout(timeout):
                transport = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        assert transport is not None
        self._transport = transport
        return self

    def get_extra_info(self, info: str) -> object:
        """httpcore asks whether an idle connection was closed, and for the TLS object."""
        if info == "is_readable":
            return self._coming.is_set()
        return self._transport.get_extra_info(info)


class StampedNetwork(httpcore.AsyncNetworkBackend):
    """Opens stamped connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[object] | None = None,
    ) -> StampedStream:
        """Connect; `local_address` and `socket_options` are not used."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, stream = await loop.create_connection(StampedStream, host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host}:{port} did not answer") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return stream

    async def sleep(self, seconds: float) -> None:
        """httpcore's pause between retries; there are none."""
        await asyncio.sleep(seconds)
