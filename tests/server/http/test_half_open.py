"""Clients that shut down their sending side and wait, and clients that hang up; over sockets."""

import contextlib
import http.client
import json
import logging
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from support.fake_stages import SLOW_S, WORDS
from support.gateway import MODEL, OMNI, RunningGateway, running_gateway
from support.waiting import wait_until
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnistage.server.http.half_open import FIRST_WAIT_S, half_open

PATIENCE_S = 5.0
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", params=[H11Protocol, HttpToolsProtocol])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    protocol = half_open(request.param)
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI, protocol=protocol) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()


def asked(script: str, version: str = "1.1", extra: str = "", is_streamed: bool = False) -> bytes:
    """A chat as it is sent."""
    messages = [{"role": "user", "content": script}]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": is_streamed}).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\n{extra}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.contextmanager
def connected(gateway: RunningGateway) -> Iterator[socket.socket]:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def half_closed(gateway: RunningGateway, sent: bytes) -> bytes:
    """What a client gets that sends and then shuts down its sending side."""
    with connected(gateway) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return rest(connection)


def text_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    content: str = json.loads(body)["choices"][0]["message"]["content"]
    return content


@pytest.mark.parametrize("script", ["words", "slow"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_half_closed_client_gets_a_whole_answer(
    script: str, version: str, gateway: RunningGateway
) -> None:
    assert text_of(half_closed(gateway, asked(script, version))) == "".join(WORDS)


@pytest.mark.parametrize("script", ["words", "slow"])
def test_a_half_closed_client_gets_a_stream(script: str, gateway: RunningGateway) -> None:
    answer = half_closed(gateway, asked(script, is_streamed=True))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    words = [json.loads(f'"{part.split(chr(34))[0]}"') for part in contents(answer)]
    assert "".join(words) == "".join(WORDS)


def contents(stream: bytes) -> list[str]:
    return stream.decode().split('"content":"')[1:]


def test_a_half_closed_client_gets_a_refusal(gateway: RunningGateway) -> None:
    answer = half_closed(gateway, asked("refuse"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"context_length_exceeded" in answer


def test_the_connection_ends_with_the_answer(gateway: RunningGateway) -> None:
    started = time.monotonic()
    half_closed(gateway, HEALTH)
    assert time.monotonic() - started < 1  # not after the five seconds of a kept connection


def test_a_half_closed_client_gets_all_answers_in_their_order(gateway: RunningGateway) -> None:
    answer = half_closed(gateway, asked("slow") + HEALTH + asked("refuse"))
    assert answer.count(b"HTTP/1.1 ") == 3
    first, second, third = answer.split(b"HTTP/1.1 ")[1:]
    assert text_of(b"HTTP/1.1 " + first) == "".join(WORDS)
    assert second.startswith(b"200 OK")
    assert b'"stages"' in second
    assert third.startswith(b"400 ")


def test_a_body_that_ends_too_early_is_refused(gateway: RunningGateway) -> None:
    answer = half_closed(gateway, asked("words")[:-5])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_a_client_that_hangs_up_amid_its_body_is_no_failure_of_ours(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("words")[:-5])
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.2)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_request_that_ends_too_early_does_not_spoil_the_one_before(
    gateway: RunningGateway,
) -> None:
    answer = half_closed(gateway, asked("slow") + asked("words")[:-5])
    assert text_of(answer) == "".join(WORDS)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat"])
def test_a_client_that_ends_before_it_has_asked_is_let_go(
    sent: bytes, gateway: RunningGateway
) -> None:
    assert half_closed(gateway, sent) == b""


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("more", [b"", HEALTH], ids=["", "behind another request"])
def test_a_client_that_hangs_up_is_noticed_at_once(
    is_streamed: bool, more: bytes, gateway: RunningGateway
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("hang", is_streamed=is_streamed) + more)
        wait_until(lambda: bool(gateway.do(lambda: gateway.stages.running)))
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running), within_s=1)


def test_a_half_closed_client_that_hangs_up_later_is_noticed(gateway: RunningGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("hang"))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(FIRST_WAIT_S / 2)
        assert gateway.do(lambda: gateway.stages.running)
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running), within_s=FIRST_WAIT_S + 1)


def test_a_half_closed_client_that_hangs_up_amid_its_stream_is_noticed(
    gateway: RunningGateway,
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("endless", is_streamed=True))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while b"data: " not in received:
            received += connection.recv(65536)
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running), within_s=1)


@pytest.mark.parametrize("wait_s", [0.0, FIRST_WAIT_S / 2], ids=["at once", "later"])
def test_one_that_hangs_up_amid_a_silent_stream_is_noticed(
    wait_s: float, gateway: RunningGateway
) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("pause", is_streamed=True))
        connection.shutdown(socket.SHUT_WR)
        while b"data: " not in connection.recv(65536):
            continue
        time.sleep(wait_s)
        assert gateway.do(lambda: gateway.stages.running)
    allowed_s = FIRST_WAIT_S + 1
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running), within_s=allowed_s)


def test_a_stream_is_whole_in_spite_of_its_silences(gateway: RunningGateway) -> None:
    """Read by a client that knows nothing of us."""
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.connect()
        connection.sock.sendall(asked("breathe", is_streamed=True))
        connection.sock.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection.sock, method="POST")
        response.begin()
        stream = response.read()
    assert len(contents(stream)) > len(WORDS)
    assert stream.endswith(b"data: [DONE]\n\n")


def test_garbage_behind_a_request_does_not_get_into_its_answer(gateway: RunningGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(asked("slow"))
        time.sleep(SLOW_S / 4)
        connection.sendall(b"\0\1garbage\r\n\r\n" * 100)
        first, *more = rest(connection).split(b"HTTP/1.1 ")[1:]
    assert text_of(b"HTTP/1.1 " + first) == "".join(WORDS)
    assert all(answer.startswith(b"400 ") for answer in more)


def test_garbage_alone_is_refused_with_the_envelope(gateway: RunningGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(b"\0\1garbage\r\n\r\n")
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_passed_over(protocol: str, gateway: RunningGateway) -> None:
    offer = f"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    answer = half_closed(gateway, offer.encode())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"stages"' in answer


def test_a_connection_stays_for_the_next_request(gateway: RunningGateway) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        ports = set()
        for _ in range(3):
            connection.request("GET", "/health")
            ports.add(connection.sock.getsockname()[1])
            assert connection.getresponse().read().startswith(b'{"stages"')
        assert len(ports) == 1
