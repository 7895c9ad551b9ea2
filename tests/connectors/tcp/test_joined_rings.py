"""Rings of one name on several nodes, joined by their links: an end may move, the other stays."""

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.channels.nodes import PATIENT, Nodes, chunk, received
from support.channels.notes import NOTES, Note
from support.faults.stopping import stopped
from support.waiting import wait_until

from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.shm import OLD, ShmConnector, ShmOptions
from omnistage.connectors.tcp.node_link import End

ADDRESS = "a.b.rows"


class Rings:
    """A ring of the channel on each of two nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._numbers = count()
        options = ShmOptions(arena_mb=1, credit=2)
        self.one = ShmConnector(nodes.one.directory, options)
        self.two = ShmConnector(nodes.two.directory, options)
        for rings in (self.one, self.two):
            rings.create(ADDRESS)

    def join(self) -> None:
        """From the first node to the second."""
        name = f"{ADDRESS}.{next(self._numbers)}"
        self.nodes.one.link.join(ADDRESS, "two", End.SENDER, name)
        self.nodes.two.link.join(ADDRESS, "one", End.RECEIVER, name)

    def part(self) -> None:
        for node in (self.nodes.one, self.nodes.two):
            node.link.part(ADDRESS)

    def renew(self) -> None:
        for rings in (self.one, self.two):
            rings.renew(ADDRESS)


@pytest.fixture
def rings(tmp_path: Path) -> Iterator[Rings]:
    with Nodes(tmp_path, PATIENT, PATIENT) as nodes:
        yield Rings(nodes.meet())


def close(*ends: Sender | Receiver[Note]) -> None:
    for end in ends:
        end.close()


def test_a_chunk_crosses_and_its_credit_comes_back(rings: Rings) -> None:
    rings.join()
    sender, receiver = rings.one.sender(ADDRESS), rings.two.receiver(ADDRESS, NOTES)
    sender.send(chunk(index=3))
    assert received(receiver).index == 3
    receiver.grant(chunk().request_id)
    wait_until(lambda: sender.credit(chunk().request_id) == 2)
    close(sender, receiver)


def test_a_sender_stays_open_while_its_receiver_moves_away_and_back_and_away_again(
    rings: Rings,
) -> None:
    sender, here = rings.one.sender(ADDRESS), rings.one.receiver(ADDRESS, NOTES)
    sender.send(chunk(index=1))
    assert received(here).index == 1
    here.close()
    rings.renew()
    rings.join()
    there = rings.two.receiver(ADDRESS, NOTES)
    wait_until(lambda: sender.credit("new") == 2)
    sender.send(chunk("new", index=2))
    assert received(there).index == 2
    there.close()
    rings.renew()
    rings.part()
    back = rings.one.receiver(ADDRESS, NOTES)
    sender.send(chunk("newer", index=4))
    assert received(back).index == 4
    back.close()
    rings.renew()
    rings.join()
    again = rings.two.receiver(ADDRESS, NOTES)
    sender.send(chunk("newest", index=5))
    assert received(again).index == 5
    close(sender, again)


def test_a_ring_is_let_go_of_once_part_returns(rings: Rings) -> None:
    """A link that is late would join it again, and renew it under what is sent next."""
    rings.join()
    link = rings.nodes.one.link
    parting = threading.Thread(target=link.part, args=[ADDRESS])
    with stopped(link.pid):
        parting.start()
        parting.join(0.3)
        assert parting.is_alive()
    parting.join()
    rings.nodes.two.link.part(ADDRESS)
    rings.renew()
    assert not any(one.ring(ADDRESS).is_joined for one in (rings.one, rings.two))


def test_what_waits_at_the_sender_comes_however_often_the_other_ring_was_renewed(
    rings: Rings,
) -> None:
    for _ in range(3):
        rings.two.renew(ADDRESS)
    sender, receiver = rings.one.sender(ADDRESS), rings.two.receiver(ADDRESS, NOTES)
    sender.send(chunk(index=1))
    rings.join()
    assert received(receiver).index == 1
    sender.send(chunk(index=2))
    assert received(receiver).index == 2
    receiver.grant(chunk().request_id, 2)
    wait_until(lambda: sender.credit(chunk().request_id) == 2)
    close(sender, receiver)


def test_a_receiver_that_begins_anew_gets_nothing_of_what_was_sent_to_the_one_before(
    rings: Rings,
) -> None:
    rings.two.renew(ADDRESS)
    sender, receiver = rings.one.sender(ADDRESS), rings.two.receiver(ADDRESS, NOTES)
    rings.join()
    sender.send(chunk(index=1))
    assert received(receiver).index == 1
    receiver.close()
    generation = rings.one.ring(ADDRESS).generation
    old = rings.nodes.one.directory / f"{ADDRESS}{OLD}"
    rings.two.renew(ADDRESS)
    # The old ring is gone once the sender is told to leave it.
    wait_until(lambda: rings.one.ring(ADDRESS).generation == generation + 1 and not old.exists())
    again = rings.two.receiver(ADDRESS, NOTES)
    sender.send(chunk("new", index=2))
    assert received(again).index == 2
    close(sender, again)


def test_a_receiver_stays_open_while_its_sender_moves_to_its_node(rings: Rings) -> None:
    rings.join()
    there, receiver = rings.one.sender(ADDRESS), rings.two.receiver(ADDRESS, NOTES)
    there.send(chunk(index=1))
    assert received(receiver).index == 1
    there.close()
    rings.renew()
    rings.part()
    here = rings.two.sender(ADDRESS)
    here.send(chunk("new", index=2))
    assert received(receiver).index == 2
    close(here, receiver)


def test_a_peer_must_be_known(rings: Rings) -> None:
    with pytest.raises(ValueError, match="no peer 'three'"):
        rings.nodes.one.link.join(ADDRESS, "three", End.SENDER, "x")


def test_a_ring_that_was_not_joined_can_be_parted_with(rings: Rings) -> None:
    rings.nodes.one.link.part(ADDRESS)
    sender, receiver = rings.one.sender(ADDRESS), rings.one.receiver(ADDRESS, NOTES)
    sender.send(chunk(index=1))
    assert received(receiver).index == 1
    close(sender, receiver)
