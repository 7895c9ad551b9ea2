"""What waits in a sender when there is no room: nothing lost, everything counted."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.channels.notes import NOTES, Note

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Full, Receiver, Sender
from omnistage.connectors.inprocess import InProcessConnector, InProcessOptions
from omnistage.connectors.sender import MAX_BACKLOG_BYTES

HALF = (1 << 20) // 2 - 4096


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Sender, Receiver[Note]]]:
    connector = InProcessConnector(tmp_path, InProcessOptions(arena_mb=1, credit=0))
    connector.create("c")
    ends = connector.sender("c"), connector.receiver("c", NOTES)
    yield ends
    for end in ends:
        end.close()
    connector.destroy("c")


def chunk(request_id: str, kind: str, size: int = 1, last: bool = False) -> Chunk[Note]:
    zeros = Tensor.from_numpy(np.zeros(size, np.uint8))
    return Chunk(request_id, Note(kind), 0, {"v": zeros}, last)


def kinds(sender: Sender, receiver: Receiver[Note]) -> list[str]:
    got = []
    while (received := receiver.receive()) is not None:
        got.append(received.message.text)
        sender.flush()
    return got


def test_a_chunk_queued_behind_a_last_one_is_not_lost(ends: tuple[Sender, Receiver[Note]]) -> None:
    """The same id may speak again after its last chunk: a cancel after an open."""
    sender, receiver = ends
    for _ in range(2):
        sender.send(chunk("big", "filler", HALF))
    sender.send(chunk("a", "open", last=True))
    sender.send(chunk("a", "silent", last=True))
    sender.send(chunk("a", "third"))
    assert kinds(sender, receiver) == ["filler", "filler", "open", "silent", "third"]
    assert sender.flush() == 0


def test_there_is_no_credit_while_a_chunk_waits_for_room(tmp_path: Path) -> None:
    connector = InProcessConnector(tmp_path, InProcessOptions(arena_mb=1, credit=8))
    connector.create("windowed")
    sender, receiver = connector.sender("windowed"), connector.receiver("windowed", NOTES)
    for _ in range(2):
        sender.send(chunk("big", "filler", HALF))
    assert sender.credit("a") == 8
    sender.send(chunk("a", "waits", HALF))
    assert sender.credit("a") == 0
    assert receiver.receive() is not None
    assert receiver.receive() is not None
    assert sender.flush() == 0
    assert sender.credit("a") == 7
    sender.close()
    receiver.close()
    connector.destroy("windowed")


def test_the_bytes_of_the_message_count_too(ends: tuple[Sender, Receiver[Note]]) -> None:
    sender, _ = ends
    text = Chunk("a", Note("x" * 500_000))
    num_sent = 2 + MAX_BACKLOG_BYTES // 500_000  # two in the ring
    for _ in range(num_sent):
        sender.send(text)
    with pytest.raises(Full):
        sender.send(text)
    sender.forget("a")


def test_an_empty_backlog_is_never_full(
    ends: tuple[Sender, Receiver[Note]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_BYTES", 1000)
    sender, receiver = ends
    for _ in range(2):
        sender.send(chunk("big", "filler", HALF))
    sender.send(chunk("a", "waits", HALF))
    assert kinds(sender, receiver) == ["filler", "filler", "waits"]
