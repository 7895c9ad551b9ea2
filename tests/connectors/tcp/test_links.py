"""Two nodes joined by their links: what crosses, what is renewed, what is lost and told."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.nodes import PATIENT, Nodes, chunk, nothing_comes, received
from support.notes import Note
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import NoChannel
from omnistage.connectors.tcp import node_link
from omnistage.connectors.tcp.connector import TcpOptions
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.node_link import End, NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, LinkSettings, PeerLost, PeerUp, Trouble

numbers = count()


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes for all tests that leave them alive."""
    with Nodes(tmp_path_factory.mktemp("nodes"), PATIENT, PATIENT) as nodes:
        yield nodes.meet()


@pytest.fixture
def address(joined: Nodes) -> Iterator[str]:
    """That of a new channel."""
    address = f"a.b.rows{next(numbers)}"
    yield address
    for node in (joined.one, joined.two):
        node.link.destroy(address)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes whose links may be killed."""
    with Nodes(tmp_path, PATIENT, PATIENT) as nodes:
        yield nodes.meet()


def test_a_chunk_crosses_and_its_credit_comes_back(joined: Nodes, address: str) -> None:
    joined.create(address, arena_mb=4, credit=2)
    sender, receiver = joined.ends(address, credit=2)
    values = np.random.default_rng(0).integers(0, 255, 1_500_003, dtype=np.uint8)
    sender.send(Chunk("a", Note("é"), 7, {"v": Tensor.from_numpy(values)}))
    got = received(receiver)
    assert (got.request_id, got.message, got.index) == ("a", Note("é"), 7)
    assert (got.tensors["v"].numpy() == values).all()
    assert sender.credit("a") == 1
    receiver.grant("a")
    wait_until(lambda: sender.credit("a") == 2)
    sender.close()
    receiver.close()


@pytest.mark.parametrize("first", ["one", "two"])
def test_either_node_may_make_its_ring_first_and_be_used_at_once(
    first: str, joined: Nodes, address: str
) -> None:
    ends = {"one": ("two", End.SENDER), "two": ("one", End.RECEIVER)}
    for name in (first, *(ends.keys() - {first})):
        node = joined.one if name == "one" else joined.two
        node.link.create(address, *ends[name], TcpOptions())
        if name == "one":
            sender = joined.sender(address)
            sender.send(chunk(index=5))
            time.sleep(0.1)  # its link has seen it
    other, receiver = joined.ends(address)
    assert received(receiver).index == 5
    sender.close()
    other.close()
    receiver.close()


def test_rings_of_other_sizes_are_not_joined_and_told(joined: Nodes, address: str) -> None:
    joined.one.link.create(address, "two", End.SENDER, TcpOptions(arena_mb=1))
    joined.two.link.create(address, "one", End.RECEIVER, TcpOptions(arena_mb=2))
    assert "arena_mb must agree" in joined.two.wait_for(Trouble).text
    sender, receiver = joined.ends(address)
    sender.send(chunk())
    assert nothing_comes(receiver)
    sender.close()
    receiver.close()


def test_a_receiver_that_grants_nothing_gets_the_window_and_stalls_no_other(
    joined: Nodes, address: str
) -> None:
    joined.create(address, credit=8)
    sender, receiver = joined.ends(address)
    for index in range(20):
        sender.send(chunk("slow", index))
    assert [received(receiver).index for _ in range(8)] == list(range(8))
    assert nothing_comes(receiver)
    assert sender.credit("slow") == 0
    sender.send(chunk("other", 3))
    assert received(receiver).request_id == "other"
    for index in range(8, 20):
        receiver.grant("slow")
        wait_until(lambda: sender.flush() == 19 - index)  # noqa: B023
        assert received(receiver).index == index
    sender.close()
    receiver.close()


def test_a_receiver_that_reads_nothing_fills_its_ring_and_no_more(
    joined: Nodes, address: str
) -> None:
    """What does not fit waits with its sender: the links hold nothing of it."""
    joined.create(address, arena_mb=1, credit=0)
    sender, receiver = joined.ends(address, arena_mb=1, credit=0)
    for index in range(30):
        sender.send(chunk(index=index, size=100_000))
    wait_until(lambda: joined.two.link.usage(address).used_bytes > 1_000_000)
    for link in (joined.one.link, joined.two.link):
        usage = link.usage(address)
        assert usage.num_sent == 10
        assert usage.used_bytes <= usage.size_bytes
    assert joined.one.link.usage(address).num_backlog == 20
    indices: list[int] = []
    while len(indices) < 30:
        sender.flush()
        got = receiver.receive()
        if got is None:
            ends = receiver.fileno(), sender.fileno()
            assert select.select(ends, [], [], 600)[0]  # more, or room for more
            continue
        assert (got.tensors["v"].numpy() == got.index).all()
        indices.append(got.index)
    assert indices == list(range(30))
    sender.close()
    receiver.close()


def test_a_cancelled_request_leaves_nothing_on_either_node(joined: Nodes, address: str) -> None:
    joined.create(address, credit=2)
    sender, receiver = joined.ends(address, credit=2)
    for number in range(50):
        for index in range(5):
            sender.send(chunk(f"r{number}", index))
        assert received(receiver).request_id == f"r{number}"
        sender.forget(f"r{number}")
        received(receiver)
        receiver.forget(f"r{number}")
    assert receiver.num_requests == 0
    wait_until(lambda: sender.flush() == 0 and sender.num_requests == 0)
    usage = joined.one.link.usage(address)
    assert (usage.num_sent, usage.num_received, usage.used_bytes) == (100, 100, 0)
    sender.close()
    receiver.close()


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_renewal_on_either_node_renews_both(name: str, joined: Nodes, address: str) -> None:
    joined.create(address, credit=2)
    sender, receiver = joined.ends(address, credit=2)
    for index in range(4):
        sender.send(chunk("old", index))
    assert received(receiver).index == 0
    (joined.one if name == "one" else joined.two).link.renew(address)
    wait_until(lambda: sender.flush() == 0 and sender.num_requests == 0)
    sender.send(chunk("old", 4))
    sender.send(chunk("new", 0))
    while (got := received(receiver)).request_id != "new":
        assert name == "one", "its own ring was renewed: what it held is gone"
        assert got.index == 1
    assert nothing_comes(receiver, 0.05)
    sender.close()
    receiver.close()


def test_nothing_of_an_old_ring_comes_to_a_new_one(joined: Nodes, address: str) -> None:
    """Renewed on both nodes while large chunks are on their way: each stream begins anew."""
    joined.create(address, arena_mb=4, credit=0)
    sender, receiver = joined.ends(address, arena_mb=4, credit=0)
    expected: dict[str, int] = {}
    num_begun = 0
    for number in range(1000):
        if number >= 40 and num_begun > 3:
            break
        for index in range(6):
            sender.send(chunk(f"r{number}", index, 700_000))
        for _ in range(number % 4):
            if (got := receiver.receive()) is not None:
                assert got.index == expected.setdefault(got.request_id, 0)
                assert (got.tensors["v"].numpy() == got.index).all()
                expected[got.request_id] += 1
        num_begun = len(expected)
        (joined.one if number % 2 else joined.two).link.renew(address)
    assert num_begun > 3
    sender.flush()
    sender.send(chunk("end"))
    while received(receiver).request_id != "end":
        continue
    sender.close()
    receiver.close()


def test_a_channel_that_is_gone_is_named(joined: Nodes, address: str) -> None:
    for link in (joined.one.link, joined.two.link):
        with pytest.raises(NoChannel, match=f"'{address}'"):
            link.renew(address)
        with pytest.raises(NoChannel, match=f"'{address}'"):
            link.usage(address)
        link.destroy(address)


def test_a_peer_without_a_route_costs_no_processor(joined: Nodes) -> None:
    link = joined.one.link
    link.meet("without-route", "255.255.255.255", 9)
    times = psutil.Process(link.pid).cpu_times
    before = times().user
    time.sleep(1.0)
    link.leave("without-route")
    assert times().user - before < 0.1


# Deaths


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
    """What it is told then is more than a message may be long."""
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
