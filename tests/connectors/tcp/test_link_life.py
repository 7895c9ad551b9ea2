"""The processes of links: slow, silent, killed, without an owner, and set up wrongly."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.channels.nodes import PATIENT, Nodes, chunk, received
from support.waiting import wait_until

from omnistage.connectors.tcp import node_link
from omnistage.connectors.tcp.connector import TcpOptions
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.node_link import End, NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, LinkSettings, PeerLost, PeerUp


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes whose links may be killed."""
    with Nodes(tmp_path, PATIENT, PATIENT) as nodes:
        yield nodes.meet()


def test_a_peer_without_a_route_costs_no_processor(joined: Nodes) -> None:
    link = joined.one.link
    link.meet("without-route", "255.255.255.255", 9)
    times = psutil.Process(link.pid).cpu_times
    before = times().user
    time.sleep(1.0)
    link.leave("without-route")
    assert times().user - before < 0.1


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_link_that_is_killed_is_told_on_both_nodes_and_goes_on(name: str, mortal: Nodes) -> None:
    victim, other = (mortal.one, mortal.two)[:: 1 if name == "one" else -1]
    mortal.create("c", credit=2)
    sender, receiver = mortal.ends("c", credit=2)
    for index in range(4):  # two sent, two in the backlog
        sender.send(chunk("old", index))
    assert received(receiver).index == 0
    port = victim.link.port
    os.kill(victim.link.pid, signal.SIGKILL)
    lost = other.wait_for(PeerLost)
    assert not lost.is_silent  # it was told by the end of the connection, which comes first
    assert "-9" in victim.wait_for(LinkEnded).why
    # Both rings were renewed before that was told.
    assert sender.flush() == 0
    assert sender.num_requests == 0
    assert receiver.receive() is None
    assert receiver.num_requests == 0
    sender.send(chunk("old", 4))  # its receiver has not seen its start
    sender.send(chunk("new"))
    for node in (victim, other):
        node.wait_for(PeerUp)
    assert received(receiver).request_id == "new"
    assert victim.link.port == port
    sender.close()
    receiver.close()


def test_a_link_with_many_channels_begins_again_after_it_was_killed(mortal: Nodes) -> None:
    """Tell it more than a message may be long."""
    mortal.create("c")
    for number in range(300):
        address = f"{number}".rjust(230, "n")
        mortal.one.link.create(address, "two", End.SENDER, TcpOptions(arena_mb=1))
    os.kill(mortal.one.link.pid, signal.SIGKILL)
    mortal.one.wait_for(LinkEnded)
    mortal.one.wait_for(PeerUp)
    sender, receiver = mortal.ends("c")
    sender.send(chunk("new"))
    assert received(receiver).request_id == "new"
    sender.close()
    receiver.close()


def test_a_link_may_take_long_to_start_while_it_is_told_much(
    mortal: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "TELL_S", 0.1)
    link = mortal.one.link
    link.restart()
    started, pid = time.monotonic(), link.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
    for _ in range(1000):
        link.meet("a-node-that-connects", "127.0.0.1", 1)
    assert time.monotonic() - started > 0.4  # its socket was full
    mortal.one.wait_for(PeerUp)
    assert link.pid == pid


@pytest.mark.parametrize("way", ["is started again", "goes on by itself"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_silent_link_is_noticed_in_time(name: str, way: str, tmp_path: Path) -> None:
    # On a busy machine a peer may say nothing for seconds, also before it is stopped.
    settings = LinkSettings(secret=new_secret(), patience_s=5, handshake_s=60)
    with Nodes(tmp_path, settings, settings) as nodes:
        check_silence(name, way, nodes.meet())


def check_silence(name: str, way: str, nodes: Nodes) -> None:
    victim, other = (nodes.one, nodes.two)[:: 1 if name == "one" else -1]
    nodes.create("c")
    sender, receiver = nodes.ends("c")
    sender.send(chunk("old"))
    assert received(receiver).request_id == "old"
    stopped_at = time.monotonic()
    os.kill(victim.link.pid, signal.SIGSTOP)
    lost = other.wait_for(PeerLost)
    assert time.monotonic() - stopped_at > 1.0
    assert lost.is_silent
    if way == "is started again":
        victim.link.restart()
    else:
        os.kill(victim.link.pid, signal.SIGCONT)
        victim.wait_for(PeerLost)
    for node in (victim, other):
        node.wait_for(PeerUp)
    sender.flush()
    sender.send(chunk("new"))
    assert received(receiver).request_id == "new"
    sender.close()
    receiver.close()


def test_a_link_that_takes_no_orders_is_told_as_ended_after_what_it_said_before(
    mortal: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "TELL_S", 0.2)
    mortal.create("c")
    link = mortal.one.link
    link.restart()
    mortal.one.wait_for(PeerUp)
    mortal.two.link.restart()  # which the first link says, and nobody has heard yet
    wait_until(lambda: select.select([link], [], [], 0)[0])
    os.kill(link.pid, signal.SIGSTOP)
    for _ in range(1000):
        link.meet("a-node-that-connects", "127.0.0.1", 1)
    events = [type(event) for event in link.events()]
    assert events[0] is PeerLost
    assert events[-1] is LinkEnded
    mortal.one.wait_for(PeerUp)
    sender, receiver = mortal.ends("c")
    sender.send(chunk("new"))
    assert received(receiver).request_id == "new"
    sender.close()
    receiver.close()


def test_a_link_ends_with_its_owner(tmp_path: Path) -> None:
    owner = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from omnistage.connectors.tcp.node_link import NodeLink\n"
        "from omnistage.connectors.tcp.orders import LinkSettings\n"
        "link = NodeLink('one', Path(sys.argv[1]), LinkSettings(secret=bytes(32)))\n"
        "print(link.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", owner, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not Path("/proc", done.stdout.strip()).exists())


def test_a_link_that_cannot_run_is_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    link = NodeLink("one", tmp_path, PATIENT)
    ends: list[LinkEnded] = []
    deadline = time.monotonic() + 600
    while not (ends and ends[-1].is_final):
        assert time.monotonic() < deadline
        ends += [event for event in link.events() if isinstance(event, LinkEnded)]
    assert len(ends) == 5
    link.meet("two", "127.0.0.1", 1)  # nobody hears it, nothing breaks
    assert link.events() == []
    link.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secret": b"short"}, "at least 16 bytes"),
        ({"certificate": "cert.pem"}, "both a certificate and its key"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    wrong: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        NodeLink("one", tmp_path, LinkSettings(**{"secret": new_secret(), **wrong}))  # type: ignore[arg-type]


def test_peers_that_cannot_be_are_refused(joined: Nodes) -> None:
    with pytest.raises(OSError, match=r"not known|Name or service"):
        joined.one.link.meet("three", "a-name.example", 1)
    with pytest.raises(ValueError, match="this node itself"):
        joined.one.link.meet("one", "127.0.0.1", 1)
    with pytest.raises(ValueError, match="`meet` it first"):
        joined.one.link.create("c", "four", End.SENDER, TcpOptions())
