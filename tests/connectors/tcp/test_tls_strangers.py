"""Who connects to a link with TLS, or is connected to, ends its own connection and no other."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest
from msgspec.structs import replace
from support.certificates import certificate
from support.channels.nodes import LOOPBACK, PATIENT
from support.waiting import wait_until

from omnistage.connectors.tcp import strangers as strangers_module
from omnistage.connectors.tcp.handshake import GREETING_BYTES, MAGIC
from omnistage.connectors.tcp.link import Link
from omnistage.connectors.tcp.orders import Begin, LinkSettings, Meet, new_channel
from omnistage.connectors.tcp.wire import tls_context

# What the library cannot make a connection of, it leaves to be collected.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket")
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: a close says so to the other side at once


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LinkSettings:
    tls = certificate(tmp_path_factory.mktemp("tls"))
    return replace(PATIENT, certificate=str(tls.certificate), key=str(tls.key))


@contextmanager
def running(settings: LinkSettings, *peers: Meet) -> Iterator[int]:
    """A link in a thread of this process, which must live until the end; its port."""
    owner, theirs = new_channel()
    listener = socket.create_server((LOOPBACK, 0))
    with owner, theirs, listener:
        link = Link((theirs, listener, theirs), Begin("one", settings, peers, ()))
        thread = threading.Thread(target=link.run)
        thread.start()
        yield listener.getsockname()[1]
        assert thread.is_alive()
        owner.close()
        thread.join()


def greeting(context: ssl.SSLContext, port: int) -> bytes:
    """What the link says first to who has the certificate."""
    with (
        socket.create_connection((LOOPBACK, port), 10) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        return encrypted.recv(GREETING_BYTES)


class ResetFirst:
    """A context whose connection is reset by the other side just before TLS begins on it."""

    def __init__(self, context: ssl.SSLContext, reset: Callable[[], None]) -> None:
        self._context, self._reset = context, reset

    def wrap_socket(
        self, connected: socket.socket, server_side: bool, do_handshake_on_connect: bool
    ) -> ssl.SSLSocket:
        self._reset()
        return self._context.wrap_socket(
            connected, server_side=server_side, do_handshake_on_connect=do_handshake_on_connect
        )


def before_tls_begins(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Have every link do this first."""

    def context(certificate: Path, key: Path, accepts: bool) -> ResetFirst:
        return ResetFirst(tls_context(certificate, key, accepts), do)

    monkeypatch.setattr(strangers_module, "tls_context", context)


def reset(other: socket.socket) -> None:
    """Close it so that the link has an error and no peer."""
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    other.close()


def test_a_stranger_that_resets_before_tls_begins_leaves_the_link_alive(
    settings: LinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers: Queue[socket.socket] = Queue()
    context = tls_context(Path(settings.certificate), Path(settings.key), accepts=False)
    before_tls_begins(monkeypatch, lambda: reset(strangers.get(timeout=600)))
    with running(settings) as port:
        for _ in range(3):
            strangers.put(socket.create_connection((LOOPBACK, port)))
        wait_until(strangers.empty)
        strangers.put(socket.socket())  # in place of the next one, which knows what to say
        assert greeting(context, port).startswith(MAGIC)


def test_a_peer_that_resets_before_tls_begins_is_dialled_again(
    settings: LinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((LOOPBACK, 0)) as peer:
        peer.settimeout(600)
        dialled: Queue[None] = Queue()

        def reset_dialled() -> None:
            reset(peer.accept()[0])
            dialled.put(None)

        before_tls_begins(monkeypatch, reset_dialled)
        meet = Meet("two", LOOPBACK, peer.getsockname()[1], connects=True)
        with running(settings, meet):
            for _ in range(3):
                dialled.get(timeout=600)


def test_files_that_are_gone_later_do_not_matter_to_a_link_that_runs(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    settings = replace(PATIENT, certificate=str(tls.certificate), key=str(tls.key))
    with running(settings) as port:
        files = Path(settings.certificate), Path(settings.key)
        context = tls_context(*files, accepts=False)
        for file in files:
            file.unlink()
        for _ in range(2):
            assert greeting(context, port).startswith(MAGIC)


def test_a_link_whose_files_are_missing_does_not_start(tmp_path: Path) -> None:
    """So that it counts as a start that failed: a few of them are the last."""
    owner, theirs = new_channel()
    with owner, theirs, socket.create_server((LOOPBACK, 0)) as listener:
        missing = str(tmp_path / "missing.pem")
        settings = replace(PATIENT, certificate=missing, key=missing)
        with pytest.raises(FileNotFoundError):
            Link((theirs, listener, theirs), Begin("one", settings, (), ()))
        owner.setblocking(False)
        with pytest.raises(BlockingIOError):
            owner.recv(1)
