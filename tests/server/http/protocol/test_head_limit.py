"""Requests whose line and headers are too long are a 431, however they come; over sockets."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.http11 import MAX_LINE_LENGTH

from omnistage.server.http.protocol.head_limit import MAX_HEAD_BYTES
from omnistage.server.http.protocol.http_protocol import refusing
from omnistage.server.http.protocol.socket_protocol import SPEECH_STREAM

PATIENCE_S = 600.0
MEGABYTE = 1 << 20
Answer = tuple[int, bytes]  # its status and its body
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
    protocol = refusing(request.param)
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI, protocol=protocol) as running:
        yield running


def head(*headers: str, start: str = "GET /health HTTP/1.1\r\nHost: x\r\n") -> str:
    return start + "".join(f"{header}\r\n" for header in headers) + "\r\n"


def many(num_bytes: int) -> list[str]:
    """Headers of 40 bytes each, which have so many together."""
    return [f"x-{number:08}: {'y' * 26}" for number in range(num_bytes // 40)]


def answered(gateway: RunningGateway, sent: bytes, num_answers: int = 1) -> list[Answer]:
    """The first answers to a client that sends it all, however little is read."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:

        def send() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(sent)

        sending = threading.Thread(target=send)
        sending.start()
        with connection.makefile("rb") as received:
            answers = [read_answer(received) for _ in range(num_answers)]
        connection.shutdown(socket.SHUT_RDWR)
        sending.join()
    return answers


def read_answer(received: BinaryIO) -> Answer:
    """An answer with a Content-Length."""
    status = int(received.readline().split()[1])
    headers = http.client.parse_headers(received)
    return status, received.read(int(headers["content-length"]))


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
    ((status, body),) = answered(gateway, sent.encode())
    assert status == 431, body[:80]
    error = json.loads(body)["error"]
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
    ((status, _),) = answered(gateway, sent.encode())
    assert status == 200


def test_heads_and_bodies_behind_each_other_are_not_one_head(gateway: RunningGateway) -> None:
    body = f"{POST}Content-Length: {MEGABYTE}\r\n\r\n" + "y" * MEGABYTE
    long = head(f"x-a: {'y' * 10_000}")
    answers = answered(gateway, (long * 8 + body + long * 8).encode(), 17)
    assert [status for status, _ in answers] == [*[200] * 8, 400, *[200] * 8]
