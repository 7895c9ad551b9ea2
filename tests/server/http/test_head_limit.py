"""Requests whose line and headers are too long are a 431, however they come; over sockets."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from support.gateway import OMNI, RunningGateway, running_gateway
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.http11 import MAX_LINE_LENGTH

from omnistage.server.http.half_open import half_open
from omnistage.server.http.head_limit import MAX_HEAD_BYTES
from omnistage.server.http.socket_protocol import SPEECH_STREAM

PATIENCE_S = 10.0
MEGABYTE = 1 << 20
POST = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = f"{POST}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n0\r\n"
UPGRADE = (
    f"GET {SPEECH_STREAM} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module", params=[H11Protocol, HttpToolsProtocol])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    protocol = half_open(request.param)
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI, protocol=protocol) as running:
        yield running


def head(*headers: str, start: str = "GET /health HTTP/1.1\r\nHost: x\r\n") -> str:
    return start + "".join(f"{header}\r\n" for header in headers) + "\r\n"


def many(num_bytes: int) -> list[str]:
    """Headers of 40 bytes each, which have so many together."""
    return [f"x-{number:08}: {'y' * 26}" for number in range(num_bytes // 40)]


def answered(gateway: RunningGateway, sent: bytes) -> bytes:
    """All that the server answers to a client that sends it all, however little is read."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:

        def send() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        sending.join()
    return answer


TOO_LONG = {
    "one header": head(f"x-a: {'y' * MEGABYTE}"),
    "many headers": head(*many(MEGABYTE)),
    "many headers that come at once": head(*many(MAX_HEAD_BYTES + 4096)),
    "a name": head(f"{'y' * MEGABYTE}: 1"),
    "a URL": head(start=f"GET /{'y' * MEGABYTE} HTTP/1.1\r\nHost: x\r\n"),
    "a URL that comes at once": head(start=f"GET /{'y' * 100_000} HTTP/1.1\r\nHost: x\r\n"),
    "a query": head(start=f"GET /health?{'y' * MEGABYTE} HTTP/1.1\r\nHost: x\r\n"),
    "no end": head(*many(MEGABYTE))[:-2],
    "a WebSocket's": head(*many(MEGABYTE), start=UPGRADE),
    "a WebSocket's of many headers": head(*many(8192), start=UPGRADE),
    "a WebSocket's of a long one": head(f"x-a: {'y' * 9000}", start=UPGRADE),
    "a WebSocket's in all": head(*[f"x-{i}: {'y' * 1000}" for i in range(100)], start=UPGRADE),
    "trailers": head(*many(MEGABYTE), start=CHUNKED),
}


@pytest.mark.parametrize("sent", TOO_LONG.values(), ids=TOO_LONG)
def test_a_head_that_is_too_long_is_a_431(sent: str, gateway: RunningGateway) -> None:
    answer = answered(gateway, sent.encode())
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:80]
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "headers_too_large"
    assert error["type"] == "invalid_request_error"
    assert any(str(limit) in error["message"] for limit in (MAX_HEAD_BYTES, MAX_LINE_LENGTH))


TAKEN = {
    "one header": head(f"x-a: {'y' * (MAX_HEAD_BYTES - 1024)}"),
    "many headers": head(*many(MAX_HEAD_BYTES - 1024)),
    "a query": head(start=f"GET /health?{'y' * (MAX_HEAD_BYTES - 1024)} HTTP/1.1\r\nHost: x\r\n"),
}


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN)
def test_a_head_of_almost_so_many_bytes_is_taken(sent: str, gateway: RunningGateway) -> None:
    assert answered(gateway, sent.encode()).startswith(b"HTTP/1.1 200 ")


def test_heads_and_bodies_behind_each_other_are_not_one_head(gateway: RunningGateway) -> None:
    body = f"{POST}Content-Length: {MEGABYTE}\r\n\r\n" + "y" * MEGABYTE
    long = head(f"x-a: {'y' * 10_000}")
    answer = answered(gateway, (long * 8 + body + long * 8).encode())
    assert answer.count(b"HTTP/1.1 200 ") == 16
    assert answer.count(b"HTTP/1.1 400 ") == 1
    assert answer.count(b"HTTP/1.1 ") == 17
