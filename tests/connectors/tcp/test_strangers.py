"""Who connects and does not know the secret gets nothing and disturbs nobody."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.certificates import certificate
from support.channels.nodes import (
    LOOPBACK,
    PATIENT,
    Nodes,
    Recorder,
    chunk,
    nothing_comes,
    read_all,
    received,
    stays,
)
from support.waiting import wait_until

from omnistage.connectors.tcp.frames import BEAT, DATA, frame
from omnistage.connectors.tcp.handshake import (
    GREETING_BYTES,
    MAGIC,
    Identity,
    connect,
    new_secret,
)
from omnistage.connectors.tcp.orders import LinkSettings, PeerLost, PeerUp, Trouble
from omnistage.connectors.tcp.strangers import MAX_STRANGERS

SETTINGS = PATIENT
SECRET = SETTINGS.secret
MARK = 123


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), SETTINGS, SETTINGS) as nodes:
        nodes.meet().create("c")
        yield nodes


def knock(nodes: Nodes) -> socket.socket:
    """Connect to node two as anybody may."""
    return socket.create_connection((LOOPBACK, nodes.two.link.port), 60)


def all_that_comes(stranger: socket.socket) -> bytes:
    """Until the link closes the connection."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while more := stranger.recv(1 << 16):
            came += more
    return came


def assert_undisturbed(nodes: Nodes) -> None:
    """The channel carries on, and neither node has lost the other."""
    sender, receiver = nodes.ends("c")
    for index in range(5):
        sender.send(chunk("a", index))
        assert received(receiver).index == index
        receiver.grant("a")
    for node in (nodes.one, nodes.two):
        events = node.link.events()
        assert not [event for event in events if not isinstance(event, Trouble)]
    sender.close()
    receiver.close()


def is_left(stranger: socket.socket) -> bool:
    """Whether the link has closed the connection, as a stranger finds who says a byte more."""
    try:
        stranger.send(b"o")
    except ConnectionError:
        return True
    return False


def with_wrong_secret() -> bytes:
    """A whole answer, by somebody who guesses."""
    side = connect(new_secret(), Identity("one", bytes(16)))
    next(side)
    answer, _ = side.send(MAGIC + bytes(32))
    return answer


@pytest.mark.parametrize(
    "said",
    [
        with_wrong_secret(),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".ljust(200),
        os.urandom(1 << 20),
        frame(BEAT, body=bytes(24)) * 10,
        struct.pack("<BxxxIQQ", DATA, 1, 0, (1 << 64) - 1) * 20,
    ],
    ids=["a wrong secret", "http", "garbage", "frames", "a huge length"],
)
def test_a_stranger_gets_a_greeting_and_no_more(said: bytes, joined: Nodes) -> None:
    with knock(joined) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(said)
        came = all_that_comes(stranger)
    assert len(came) <= GREETING_BYTES
    assert came[: len(MAGIC)] in (MAGIC, b"")
    assert_undisturbed(joined)


def test_a_stranger_that_is_slow_is_left_in_time(tmp_path: Path) -> None:
    """It says a byte now and then, for ever."""
    settings = LinkSettings(secret=SECRET, patience_s=600, handshake_s=1)
    with Nodes(tmp_path, settings, settings) as nodes:
        nodes.meet().create("c")
        with knock(nodes) as stranger:
            wait_until(lambda: is_left(stranger))
        assert_undisturbed(nodes)


def test_many_strangers_take_no_more_than_their_places(joined: Nodes) -> None:
    files = Path(f"/proc/{joined.two.link.pid}/fd")
    before = len(list(files.iterdir()))
    with contextlib.ExitStack() as stack:
        for _ in range(3 * MAX_STRANGERS):
            stack.enter_context(knock(joined))
        assert_undisturbed(joined)
        # One more for a moment: who comes is taken before the one that waited longest goes.
        wait_until(lambda: len(list(files.iterdir())) <= before + MAX_STRANGERS)
    wait_until(lambda: len(list(files.iterdir())) <= before)


def test_strangers_do_not_take_the_place_of_a_peer_that_is_dialled(tmp_path: Path) -> None:
    with (
        Nodes(tmp_path, SETTINGS, SETTINGS) as nodes,
        socket.create_server((LOOPBACK, 0)) as slow,
        contextlib.ExitStack() as stack,
    ):
        nodes.one.link.meet("slow", LOOPBACK, slow.getsockname()[1])
        peer = stack.enter_context(slow.accept()[0])
        port = nodes.one.link.port
        strangers = [
            stack.enter_context(socket.create_connection((LOOPBACK, port), 60))
            for _ in range(MAX_STRANGERS + 2)
        ]
        all_that_comes(strangers[1])  # the first two have made way
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)


def test_strangers_are_told_of_once_a_minute(tmp_path: Path) -> None:
    with Nodes(tmp_path, SETTINGS, SETTINGS) as nodes:
        for _ in range(5):
            with knock(nodes) as stranger:
                stranger.sendall(with_wrong_secret())
                all_that_comes(stranger)
        assert "1 connections were refused" in nodes.two.wait_for(Trouble).text
        assert nodes.two.link.events() == []


def test_a_node_of_another_run_is_never_joined(tmp_path: Path) -> None:
    """It knows its own run's secret and our names."""
    with Nodes(tmp_path, replace(SETTINGS, secret=new_secret()), SETTINGS) as nodes:
        nodes.introduce()
        nodes.create("c")
        sender, receiver = nodes.ends("c")
        sender.send(chunk())
        assert nothing_comes(receiver, 1.0)
        assert "does not know the run's secret" in nodes.two.wait_for(Trouble).text
        for node in (nodes.one, nodes.two):
            assert not [event for event in node.link.events() if isinstance(event, PeerUp)]
        sender.close()
        receiver.close()


def test_a_node_that_nobody_expects_is_not_let_in(tmp_path: Path) -> None:
    with Nodes(tmp_path, SETTINGS, SETTINGS) as nodes:
        nodes.one.link.meet("two", LOOPBACK, nodes.two.link.port)
        assert "'one' is not expected" in nodes.two.wait_for(Trouble).text
        nodes.two.link.meet("one", LOOPBACK, nodes.one.link.port)
        assert nodes.one.wait_for(PeerUp).peer == "two"


def test_a_peer_that_says_what_no_link_says_is_lost(tmp_path: Path) -> None:
    """It knows the secret: its connection ends, the link goes on."""
    with Nodes(tmp_path, SETTINGS, SETTINGS) as nodes:
        nodes.two.link.meet("one", LOOPBACK, 1)
        for number, wrong in enumerate(
            [frame(77), frame(BEAT, body=b"short"), struct.pack("<BxxxIQQ", 5, 1, 0, 1 << 40)]
        ):
            with knock(nodes) as peer:
                side = connect(SECRET, Identity("one", bytes(16)))
                next(side)
                peer.sendall(side.send(read_all(peer, GREETING_BYTES))[0])
                peer.sendall(frame(BEAT, body=struct.pack("<3Q", 5, 0, 0)))
                reply = peer.recv(1 << 16)
                while len(reply) < 112 + 48 + 48:
                    reply += peer.recv(1 << 16)
                sent_ns = struct.unpack_from("<Q", reply, 112 + 48 + 24)[0]
                peer.sendall(frame(BEAT, body=struct.pack("<3Q", 6, sent_ns, 6)))
                nodes.two.wait_for(PeerUp)
                peer.sendall(wrong)
                all_that_comes(peer)
            assert not nodes.two.wait_for(PeerLost).is_silent, number


# Encryption


def settings_with_tls(folder: Path) -> LinkSettings:
    folder.mkdir()
    tls = certificate(folder)
    return replace(SETTINGS, certificate=str(tls.certificate), key=str(tls.key))


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_what_is_said_can_be_read_on_the_way_only_without_tls(
    is_encrypted: bool, tmp_path: Path
) -> None:
    settings = settings_with_tls(tmp_path / "tls") if is_encrypted else SETTINGS
    with Nodes(tmp_path, settings, settings) as nodes:
        recorder = Recorder(nodes.two.link.port)
        nodes.meet(recorder.port).create("c")
        sender, receiver = nodes.ends("c")
        for index in range(3):
            sender.send(chunk("a", MARK + index, 1_000_000))
        for index in range(3):
            got = received(receiver)
            assert (got.tensors["v"].numpy() == MARK + index).all()
            receiver.grant("a")
        wait_until(lambda: sender.credit("a") == 8)
        assert (bytes([MARK]) * 100 in recorder.heard) is not is_encrypted
        assert SECRET not in recorder.heard
        sender.close()
        receiver.close()
        nodes.one.link.close()
        recorder.close()


@pytest.mark.parametrize("other", ["none", "another"])
def test_a_node_without_the_runs_certificate_is_not_joined(other: str, tmp_path: Path) -> None:
    wrong = SETTINGS if other == "none" else settings_with_tls(tmp_path / "wrong")
    right = settings_with_tls(tmp_path / "right")
    for number, (first, second) in enumerate([(wrong, right), (right, wrong)]):
        (tmp_path / str(number)).mkdir()
        with Nodes(tmp_path / str(number), first, second) as nodes:
            nodes.introduce()
            links = nodes.one.link, nodes.two.link

            def is_up() -> bool:
                found = [event for link in links for event in link.events()]  # noqa: B023
                return any(isinstance(event, PeerUp) for event in found)

            assert stays(lambda: not is_up(), 1.0)
