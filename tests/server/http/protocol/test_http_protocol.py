"""Clients that hang up, ask one thing behind the other, or send what is no HTTP; over sockets."""

import contextlib
import http.client
import json
import logging
import socket
import struct
from collections.abc import Iterator

import pytest
from support.fakes.stages import WORDS
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.waiting import wait_until
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnistage.server.http.protocol.http_protocol import refusing
from omnistage.server.http.protocol.socket_protocol import SPEECH_STREAM
from omnistage.server.http.refusal import LINGER_S

PATIENCE_S = LINGER_S + 600
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = "Connection: close\r\n"


@pytest.fixture(scope="module", params=[H11Protocol, HttpToolsProtocol])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    protocol = refusing(request.param)
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI, protocol=protocol) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()


def asked(script: str, extra: str = "", is_streamed: bool = False) -> bytes:
    """A chat as it is sent."""
    messages = [{"role": "user", "content": script}]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": is_streamed}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{extra}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def offer(protocol: str, path: str = "/health") -> bytes:
    """A request that offers to go on in another protocol."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    return (head + key).encode()


@contextlib.contextmanager
def connected(gateway: RunningGateway) -> Iterator[socket.socket]:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def answers_to(gateway: RunningGateway, sent: bytes) -> list[bytes]:
    """What comes until the server closes, cut before each answer."""
    with connected(gateway) as connection:
        connection.sendall(sent)
        first, *answers = rest(connection).split(b"HTTP/1.1 ")
    assert not first
    return answers


def answers_behind_one_that_waits(
    gateway: RunningGateway, sent: bytes, later: bytes = b""
) -> list[bytes]:
    """The same, where the first is answered once the rest has come."""
    with connected(gateway) as connection:
        connection.sendall(sent)
        gateway.wait_until_waiting()
        connection.sendall(later)
        gateway.go_on()
        first, *answers = rest(connection).split(b"HTTP/1.1 ")
    assert not first
    return answers


def text_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"200 OK\r\n"), answer
    content: str = json.loads(body)["choices"][0]["message"]["content"]
    return content


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
def test_a_client_that_hangs_up_is_noticed_at_once(
    is_streamed: bool, half: bool, gateway: RunningGateway
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("hang", is_streamed=is_streamed))
        wait_until(lambda: bool(gateway.do(lambda: gateway.stages.running)))
        if half:
            connection.shutdown(socket.SHUT_WR)
            rest(connection)
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running))


def test_requests_behind_each_other_are_answered_in_their_order(gateway: RunningGateway) -> None:
    sent = asked("wait") + HEALTH + asked("refuse", CLOSE)
    first, second, third = answers_behind_one_that_waits(gateway, sent)
    assert text_of(first) == "".join(WORDS)
    assert second.startswith(b"200 OK")
    assert b'"stages"' in second
    assert third.startswith(b"400 ")


def test_a_client_that_hangs_up_amid_its_body_is_no_failure_of_ours(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("words")[:-5])
        wait_until(lambda: gateway.num_asked == 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: gateway.num_asked == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat"])
def test_a_client_that_ends_before_it_has_asked_is_let_go(
    sent: bytes, gateway: RunningGateway
) -> None:
    with connected(gateway) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""


def test_garbage_behind_a_request_does_not_get_into_its_answer(gateway: RunningGateway) -> None:
    garbage = b"\0\1garbage\r\n\r\n" * 100
    first, *more = answers_behind_one_that_waits(gateway, asked("wait"), garbage)
    assert text_of(first) == "".join(WORDS)
    assert all(answer.startswith(b"400 ") for answer in more)


def test_garbage_alone_is_refused_with_the_envelope(gateway: RunningGateway) -> None:
    (answer,) = answers_to(gateway, b"\0\1garbage\r\n\r\n")
    assert answer.startswith(b"400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_an_offer_of_a_protocol_that_is_not_spoken_is_passed_over(gateway: RunningGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(offer("h2c"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_websocket_where_there_is_none_is_refused(gateway: RunningGateway) -> None:
    (answer,) = answers_to(gateway, offer("websocket"))
    assert answer.startswith(b"403 ")


@pytest.mark.parametrize("path", ["/health", SPEECH_STREAM])
def test_a_websocket_behind_a_request_does_not_get_into_its_answer(
    path: str, gateway: RunningGateway
) -> None:
    received = b""
    with connected(gateway) as connection:
        connection.sendall(asked("wait") + offer("websocket", path))
        gateway.wait_until_waiting()
        gateway.go_on()
        while not received.endswith(b"\r\n\r\n") or b" 101 " not in received:
            more = connection.recv(65536)
            received += more
            if not more:
                break
    empty, first, *others = received.split(b"HTTP/1.1 ")
    assert not empty
    assert text_of(first) == "".join(WORDS)
    assert all(answer[:4] in (b"101 ", b"403 ") for answer in others)


def test_a_connection_stays_for_the_next_request(gateway: RunningGateway) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        ports = set()
        for _ in range(3):
            connection.request("GET", "/health")
            ports.add(connection.sock.getsockname()[1])
            assert connection.getresponse().read().startswith(b'{"stages"')
        assert len(ports) == 1
