"""Bodies that are too large are refused before they are read."""

import asyncio
import socket
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from support.gateway.serving import RunningGateway

from omnistage.server.common.errors import ApiError
from omnistage.server.http.body_limit import BodyLimit

URL = "/v1/chat/completions"
HEAD = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def connection(gateway: RunningGateway) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as opened:
        opened.settimeout(600)
        yield opened


def test_the_announced_length_is_enough(connection: socket.socket) -> None:
    connection.sendall(f"{HEAD}Content-Length: {33 << 20}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"}}"):
        answer += connection.recv(65536)
    assert b" 413 " in answer.partition(b"\r\n")[0]
    assert b'"code":"request_too_large"' in answer
    assert b"32 MiB" in answer


def test_a_client_that_reads_after_it_has_sent_everything_gets_the_answer(
    connection: socket.socket,
) -> None:
    connection.sendall(f"{HEAD}Content-Length: {33 << 20}\r\n\r\n".encode())
    for _ in range(33):
        connection.sendall(b"x" * (1 << 20))
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 413 " in answer.partition(b"\r\n")[0]
    assert answer.endswith(b"}}")


def test_the_rest_of_a_refused_body_is_waited_for_a_while_only(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.http.refusal.LINGER_S", 0.1)
    connection.sendall(f"{HEAD}Content-Length: {33 << 20}\r\n\r\n".encode())
    assert b"".join(iter(lambda: connection.recv(65536), b"")).endswith(b"}}")


def test_a_body_without_a_length_is_read_to_the_limit_only(connection: socket.socket) -> None:
    connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    piece = f"{1 << 20:x}\r\n".encode() + b"x" * (1 << 20) + b"\r\n"
    try:
        for _ in range(40):
            connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert b" 413 " in connection.recv(65536).partition(b"\r\n")[0]


def test_a_body_of_just_the_limit_is_read(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    response = client.post(URL, content=b" " * (32 << 20), headers=headers)
    assert response.status_code == 400


async def test_all_bodies_together_have_a_limit() -> None:
    """Those that were refused or answered count no more."""
    inside = asyncio.Semaphore(0)
    leave = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        inside.release()
        await leave.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limit = BodyLimit(app, max_bytes=10, max_held_bytes=10)

    async def status(size: int) -> int:
        pieces = iter([b"x" * (size - 1), b"x"])
        sent: list[Message] = []

        async def receive() -> Message:
            body = next(pieces, b"")
            return {"type": "http.request", "body": body, "more_body": len(body) > 1}

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await limit({"type": "http", "method": "POST", "headers": []}, receive, send)
        except ApiError as error:
            await send({"status": error.status})
        return int(sent[0]["status"])

    first = asyncio.create_task(status(6))
    await inside.acquire()
    assert await status(5) == 503
    second = asyncio.create_task(status(4))
    await inside.acquire()
    leave.set()
    assert (await first, await second, await status(10)) == (200, 200, 200)
    assert await status(11) == 413
