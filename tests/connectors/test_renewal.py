"""A channel one end of which has died, renewed: the other end goes on as if nothing had been."""

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.notes import NOTES, Note
from support.settled import settled_connector

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Connector, NoChannel, Receiver, Sender
from omnistage.connectors.receiver import RingReceiver

WINDOW = 2


@pytest.fixture(params=("shm", "inprocess", "tcp"))
def connector(
    request: pytest.FixtureRequest, folder_for: Callable[[str], Path]
) -> Iterator[Connector]:
    folder = folder_for(request.param)
    connector = settled_connector(request.param, folder, {"arena_mb": 1, "credit": WINDOW})
    connector.create("c")
    yield connector
    connector.destroy("c")


@pytest.fixture
def sender(connector: Connector) -> Iterator[Sender]:
    sender = connector.sender("c")
    yield sender
    sender.close()


@pytest.fixture
def receiver(connector: Connector) -> Iterator[Receiver[Note]]:
    receiver = connector.receiver("c", NOTES)
    yield receiver
    receiver.close()


def chunk(request_id: str, index: int = 0, last: bool = False) -> Chunk[Note]:
    tensor = Tensor.from_numpy(np.full(5, index, np.uint8))
    return Chunk(request_id, Note(), index, {"v": tensor}, last)


def received(receiver: Receiver[Note]) -> list[tuple[str, int]]:
    got = []
    while (chunk := receiver.receive()) is not None:
        got.append((chunk.request_id, chunk.index))
    return got


def is_readable(end: Sender | Receiver[Note]) -> bool:
    return bool(select.select([end.fileno()], [], [], 0)[0])


def test_a_sender_goes_over_and_drops_what_belonged_to_the_dead(
    connector: Connector, sender: Sender
) -> None:
    for index in range(4):  # two sent, two in the backlog
        sender.send(chunk("old", index))
    connector.renew("c")
    sender.send(chunk("old", 4))
    sender.send(chunk("new", 0))
    sender.flush()
    receiver = connector.receiver("c", NOTES)
    assert received(receiver) == [("new", 0)]
    sender.send(chunk("old", 5, last=True))
    sender.send(chunk("old", 6))  # its id is free again after its last
    assert received(receiver) == [("old", 6)]
    receiver.close()


def test_a_sender_starts_with_full_credit(connector: Connector, sender: Sender) -> None:
    sender.send(chunk("old", 0))
    connector.renew("c")
    assert sender.credit("new") == WINDOW
    receiver = connector.receiver("c", NOTES)
    for index in range(3):
        sender.send(chunk("new", index))
    assert received(receiver) == [("new", 0), ("new", 1)]
    receiver.grant("new")
    sender.flush()
    assert received(receiver) == [("new", 2)]
    receiver.close()


def test_a_receiver_goes_over_and_never_sees_what_the_dead_had_sent(
    connector: Connector, receiver: Receiver[Note]
) -> None:
    dead = connector.sender("c")
    dead.send(chunk("old", 0))
    assert received(receiver) == [("old", 0)]
    dead.send(chunk("old", 1))
    connector.renew("c")
    sender = connector.sender("c")
    sender.send(chunk("new", 0))
    assert received(receiver) == [("new", 0)]
    receiver.grant("old")  # of the old ring: means nothing in the new one
    assert sender.credit("new") == WINDOW - 1
    receiver.grant("new")
    assert sender.credit("new") == WINDOW
    dead.close()
    sender.close()


def test_a_renewal_wakes_both_ends(
    connector: Connector, sender: Sender, receiver: Receiver[Note]
) -> None:
    assert not is_readable(sender)
    assert not is_readable(receiver)
    connector.renew("c")
    assert is_readable(sender)
    assert is_readable(receiver)
    sender.flush()
    assert received(receiver) == []
    assert not is_readable(receiver)


def test_a_renewal_while_a_receiver_clears_its_wake_up_is_seen(
    connector: Connector, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(receiver, RingReceiver)
    clear = receiver._has_chunk.clear
    senders: list[Sender] = []

    def renew_and_clear() -> None:
        if not senders:
            connector.renew("c")
            senders.append(connector.sender("c"))
            senders[0].send(chunk("new"))
        clear()

    monkeypatch.setattr(receiver._has_chunk, "clear", renew_and_clear)
    assert received(receiver) == [("new", 0)]
    senders[0].close()


def test_many_renewals_between_two_uses_are_one(
    connector: Connector, sender: Sender, receiver: Receiver[Note]
) -> None:
    for _ in range(5):
        connector.renew("c")
    sender.send(chunk("a"))
    assert received(receiver) == [("a", 0)]


def test_closing_an_end_that_has_not_gone_over_is_fine(connector: Connector) -> None:
    sender, receiver = connector.sender("c"), connector.receiver("c", NOTES)
    connector.renew("c")
    receiver.grant("a")
    sender.close()
    receiver.close()


def test_a_channel_that_is_gone_after_its_renewal_is_named_at_every_use(
    connector: Connector, sender: Sender, receiver: Receiver[Note]
) -> None:
    connector.renew("c")
    connector.destroy("c")
    for _ in range(2):
        with pytest.raises(NoChannel, match="'c'"):
            sender.send(chunk("a"))
        with pytest.raises(NoChannel, match="'c'"):
            receiver.receive()


def test_renewing_what_is_not_there_is_an_error(connector: Connector) -> None:
    with pytest.raises(NoChannel, match="nowhere"):
        connector.renew("nowhere")
