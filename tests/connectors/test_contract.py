"""Hold every connector to one contract: chunks, credit, bounds."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from support.channels.channel_ends import NAMES, Ends, Folder, chunk
from support.channels.notes import NOTES, Note
from support.channels.settled import settled_connector
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import ChunkTooLarge, Full, NoChannel
from omnistage.connectors.messages import Message, UnknownMessage
from omnistage.connectors.ring import NUM_SLOTS
from omnistage.connectors.sender import MAX_BACKLOG_CHUNKS


def test_a_chunk_arrives_as_it_was_sent(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends()
    tensors = {
        "f": Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "b": Tensor("bfloat16", (2,), b"\1\2\3\4"),
        "none": Tensor.from_numpy(np.zeros((0, 4), np.int32)),
    }
    sender.send(Chunk("a", Note("é", {"x": [1, None, "é", b"\0"]}), 7, tensors, True))
    got = receiver.receive()
    assert got is not None
    assert (got.request_id, got.index, got.last) == ("a", 7, True)
    assert got.message == Note("é", {"x": [1, None, "é", b"\0"]})
    assert got.tensors["f"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert bytes(got.tensors["b"].data) == b"\1\2\3\4"
    assert got.tensors["none"].numpy().shape == (0, 4)
    assert receiver.receive() is None


class Other(Message, frozen=True):
    """What the channels of these tests do not carry."""


def test_a_message_that_the_channel_does_not_carry_is_an_error_that_names_it(
    open_ends: Callable[..., Ends],
) -> None:
    sender, receiver = open_ends(credit=2)
    sender.send(Chunk("a", Other()))
    sender.send(chunk(index=3))
    with pytest.raises(UnknownMessage, match="request a, message 'other'"):
        receiver.receive()
    got = receiver.receive()
    assert got is not None
    assert got.index == 3
    assert sender.credit("a") == 1  # only the chunk that arrived holds any


def test_every_received_tensor_starts_at_a_multiple_of_64_bytes(
    open_ends: Callable[..., Ends],
) -> None:
    sender, receiver = open_ends(credit=0)
    for size in range(1, 200, 7):
        arrays = [np.full(size + index, index, np.uint8) for index in range(3)]
        tensors = {f"v{index}": Tensor.from_numpy(array) for index, array in enumerate(arrays)}
        sender.send(Chunk("a", Note("k" * size), 0, tensors))
        got = receiver.receive()
        assert got is not None
        for array, tensor in zip(arrays, got.tensors.values(), strict=True):
            received = tensor.numpy()
            assert received.ctypes.data % 64 == 0
            assert received.tolist() == array.tolist()


def test_a_received_chunk_owns_its_memory(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=0)
    sender.send(chunk(index=1, size=5000))
    first = receiver.receive()
    for index in range(600):  # three times what the arena holds
        sender.send(chunk(index=index, size=5000))
        assert receiver.receive() is not None
    assert first is not None
    assert set(first.tensors["v"].numpy()) == {1}


def test_credit_is_exact_and_comes_back(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=3)
    assert sender.credit("a") == 3
    for index in range(5):
        sender.send(chunk(index=index))
    assert sender.credit("a") == 0
    assert [c.index for c in iter(receiver.receive, None)] == [0, 1, 2]
    receiver.grant("a", 2)
    assert sender.flush() == 0
    assert [c.index for c in iter(receiver.receive, None)] == [3, 4]
    receiver.grant("a", 100)  # no more than is held
    assert sender.credit("a") == 3


def test_credit_of_several_requests_comes_back_with_one_wake_up(
    open_ends: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = open_ends(credit=3)
    for request_id in ("a", "b", "b", "c"):
        sender.send(chunk(request_id))
    assert len(list(iter(receiver.receive, None))) == 4
    wake_ups: list[bool] = []
    wake = receiver._has_room.set

    def counted() -> None:
        wake_ups.append(True)
        wake()

    monkeypatch.setattr(receiver._has_room, "set", counted)
    receiver.grant_each(["a", "b", "unknown"])
    assert wake_ups == [True]
    wait_until(lambda: [sender.credit(request_id) for request_id in "abc"] == [3, 2, 2])
    receiver.grant_each(["b", "b"])  # no more than is held
    wait_until(lambda: sender.credit("b") == 3)


def test_a_request_without_credit_stalls_no_other(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=1)
    for index in range(50):
        sender.send(chunk("slow", index))
    sender.send(chunk("fast"))
    assert [c.request_id for c in iter(receiver.receive, None)] == ["slow", "fast"]


@pytest.mark.parametrize("name", NAMES)
def test_the_waits_of_chunks_are_counted_with_and_without_credit(
    name: str, folder_for: Folder
) -> None:
    connector = settled_connector(name, folder_for(name), {"arena_mb": 1, "credit": 1})
    connector.create("x")
    sender, receiver = connector.sender("x"), connector.receiver("x", NOTES)
    sender.send(chunk())
    sender.send(chunk(index=1))  # no credit
    sender.send(chunk("b"))
    assert connector.usage("x").num_backlog == 1
    time.sleep(0.02)
    assert connector.usage("x").wait_ns == connector.usage("x").backlog_ns == 0  # none is over
    assert receiver.receive() is not None
    assert 2e7 <= connector.usage("x").wait_ns < 6e10
    assert connector.usage("x").backlog_ns == 0
    receiver.grant("a")
    sender.flush()
    usage = connector.usage("x")
    assert usage.num_backlog == 0
    assert 2e7 <= usage.backlog_ns < 6e10
    sender.send(chunk(index=2))
    sender.forget("a")
    assert connector.usage("x").num_backlog == 0
    sender.close()
    receiver.close()
    assert connector.usage("x") == usage  # whatever its ends do
    connector.renew("x")
    assert connector.usage("x") == (0,) * 7 + (1 << 20,)
    connector.destroy("x")
    with pytest.raises(NoChannel, match="'x'"):
        connector.usage("x")


def test_a_backlog_is_bounded(open_ends: Callable[..., Ends]) -> None:
    sender, _ = open_ends(credit=1)
    for index in range(MAX_BACKLOG_CHUNKS + 1):
        sender.send(chunk(index=index))
    with pytest.raises(Full, match="request a"):
        sender.send(chunk())
    sender.send(chunk("b"))


def test_a_send_within_the_credit_is_never_refused_whatever_its_size(
    open_ends: Callable[..., Ends],
) -> None:
    sender, receiver = open_ends(credit=14, arena_mb=16)
    large = {"v": Tensor.from_numpy(np.zeros((8 << 20) - 4096, np.uint8))}
    for index in range(3):
        sender.send(chunk("a", index))
    assert sender.credit("a") == 11  # 88 MiB, of which the ring takes no more than two
    for index in range(3, 14):
        sender.send(Chunk("a", Note(), index, large))
    assert sender.credit("a") == 0
    with pytest.raises(Full, match="request a"):
        sender.send(Chunk("a", Note(), 14, large))
    came = []
    while (got := receiver.receive()) is not None:
        came.append(got.index)
        sender.flush()
    assert came == list(range(14))


def test_a_chunk_that_never_fits_is_refused(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends()
    for size in (1 << 19, 1 << 20):
        with pytest.raises(ChunkTooLarge, match=r"a Note of \d+ bytes; channel c0 .* 524288,"):
            sender.send(chunk(size=size))
    assert receiver.receive() is None
    assert sender.num_requests == 0


@pytest.mark.parametrize("before", range(1, 1 << 19, 50_001))
def test_a_chunk_of_half_the_arena_always_fits(before: int, open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=0)
    sender.send(chunk("small", size=before))
    sender.send(chunk("large", size=(1 << 19) - 128))
    sender.send(chunk("other", size=(1 << 19) - 128))
    names = []
    while (got := receiver.receive()) is not None:
        names.append(got.request_id)
        sender.flush()
    assert names == ["small", "large", "other"]


@pytest.mark.parametrize("side", ["sender", "receiver", "both"])
def test_a_cancelled_request_leaves_nothing_behind(
    side: str, open_ends: Callable[..., Ends]
) -> None:
    sender, receiver = open_ends(credit=2)
    for number in range(NUM_SLOTS + 100):
        name = f"r{number}"
        for index in range(4):
            sender.send(chunk(name, index))
        assert receiver.receive() is not None
        if side != "receiver":
            sender.forget(name)
        while receiver.receive() is not None:
            continue
        receiver.forget(name)
        if side == "receiver":
            sender.forget(name)
    while receiver.receive() is not None:
        continue
    assert sender.flush() == 0
    assert sender.num_requests == 0
    assert receiver.num_requests == 0
