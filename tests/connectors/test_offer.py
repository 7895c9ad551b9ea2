"""Chunks that are made in the channel's memory, and read there: nothing of them waits elsewhere."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from support.channels.settled import settled_connector
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk, Filling, Tensor
from omnistage.connectors.contract import ChunkTooLarge, Receiver, Sender
from omnistage.connectors.messages import Message, Messages

SIZE = 400_000  # two fit an arena of 1 MiB


class Large(Message, frozen=True):
    """A message whose tensors are read in place."""

    in_place: ClassVar[bool] = True


LARGE: Messages[Large] = Messages(Large)


@pytest.fixture(params=("shm", "inprocess", "tcp"))
def ends(
    request: pytest.FixtureRequest, folder_for: Callable[[str], Path]
) -> Iterator[tuple[Sender, Receiver[Large]]]:
    options = {"arena_mb": 1, "credit": 4}
    connector = settled_connector(request.param, folder_for(request.param), {**options})
    connector.create("c")
    sender, receiver = connector.sender("c"), connector.receiver("c", LARGE)
    yield sender, receiver
    sender.close()
    receiver.close()
    connector.destroy("c")


def large(
    index: int, fills: list[int] | None = None, size: int = SIZE, last: bool = False
) -> Chunk[Large]:
    def fill(place: memoryview) -> None:
        if fills is not None:
            fills.append(index)
        place[:] = bytes([index]) * size

    tensors = {"v": Tensor("uint8", (size,), Filling(size, fill))}
    return Chunk("a", Large(), index, tensors, last)


def values(chunk: Chunk[Large] | None) -> list[int]:
    assert chunk is not None
    return sorted({*chunk.tensors["v"].numpy().tolist()})


def test_what_is_offered_without_room_is_not_made_and_does_not_wait(
    ends: tuple[Sender, Receiver[Large]],
) -> None:
    sender, receiver = ends
    fills: list[int] = []
    assert [sender.offer(large(index, fills)) for index in range(3)] == [True, True, False]
    assert fills == [0, 1]
    assert sender.flush() == 0
    assert [values(receiver.receive()) for _ in range(2)] == [[0], [1]]
    assert receiver.receive() is None


def test_what_is_offered_without_credit_is_not_made(ends: tuple[Sender, Receiver[Large]]) -> None:
    sender, receiver = ends
    fills: list[int] = []
    assert [sender.offer(large(one, fills, 64)) for one in range(5)] == [True] * 4 + [False]
    assert fills == [0, 1, 2, 3]
    assert values(receiver.receive()) == [0]
    receiver.grant("a")
    wait_until(lambda: sender.offer(large(4, fills, 64)))
    assert fills == [0, 1, 2, 3, 4]


def test_a_chunk_is_in_the_channel_s_memory_until_the_next_call(
    ends: tuple[Sender, Receiver[Large]],
) -> None:
    sender, receiver = ends
    for index in range(40):
        assert sender.offer(large(index))
        assert sender.offer(large(index + 100))
        first = receiver.receive()
        assert first is not None
        assert not sender.offer(large(99))  # the memory of the first is still its own
        assert values(first) == [index]
        kept = first.owned()
        assert values(receiver.receive()) == [index + 100]
        assert receiver.receive() is None
        receiver.grant("a", 2)
        assert values(kept) == [index]


def test_the_last_chunk_that_is_offered_ends_its_request(
    ends: tuple[Sender, Receiver[Large]],
) -> None:
    sender, receiver = ends
    assert sender.offer(large(1, size=64, last=True))
    assert receiver.receive() is not None
    receiver.grant("a")
    wait_until(lambda: sender.num_requests == 0)
    with pytest.raises(ChunkTooLarge, match="a Large of"):
        sender.offer(large(1, size=600_000))
