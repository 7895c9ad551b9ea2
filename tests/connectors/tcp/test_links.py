"""Two nodes joined by their links: what crosses, what is renewed, what is lost and told."""

import select
import time

import numpy as np
import pytest
from support.channels.nodes import Nodes, chunk, nothing_comes, received
from support.channels.notes import Note
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import NoChannel
from omnistage.connectors.tcp.connector import TcpOptions
from omnistage.connectors.tcp.node_link import End
from omnistage.connectors.tcp.orders import Trouble


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
