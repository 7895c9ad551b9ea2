"""One contract for every connector, against a plain model of it."""

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.notes import NOTES, Note
from support.settled import settled_connector
from support.waiting import wait_until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.codec import encode
from omnistage.connectors.contract import ChannelClosed, ChunkTooLarge, Full, NoChannel
from omnistage.connectors.messages import Message, UnknownMessage
from omnistage.connectors.receiver import RingReceiver
from omnistage.connectors.ring import NUM_SLOTS
from omnistage.connectors.sender import MAX_BACKLOG_CHUNKS, RingSender

NAMES = ("shm", "inprocess", "tcp")
Folder = Callable[[str], Path]
Ends = tuple[RingSender, RingReceiver[Note]]


def chunk(request_id: str = "a", index: int = 0, size: int = 8, last: bool = False) -> Chunk[Note]:
    values = np.full(size, index % 251, np.uint8)
    return Chunk(request_id, Note(), index, {"v": Tensor.from_numpy(values)}, last)


@pytest.fixture(params=NAMES)
def open_ends(request: pytest.FixtureRequest, folder_for: Folder) -> Iterator[Callable[..., Ends]]:
    """A function that makes a channel with options and opens both ends."""
    opened: list[tuple[str, Ends]] = []
    folder = folder_for(request.param)
    connector = make_connector(request.param, folder, {})

    def make(**options: int) -> Ends:
        address = f"c{len(opened)}"
        connector = settled_connector(request.param, folder, {"arena_mb": 1, **options})
        connector.create(address)
        ends = connector.sender(address), connector.receiver(address, NOTES)
        opened.append((address, ends))  # type: ignore[arg-type]
        return ends  # type: ignore[return-value]

    yield make
    for address, (sender, receiver) in opened:
        sender.close()
        receiver.close()
        connector.destroy(address)


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


def test_the_descriptors_tell_of_work(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=1)
    assert not receiver.wait(0)
    sender.send(chunk())
    sender.send(chunk(index=1))
    assert receiver.wait(600)
    assert receiver.receive() is not None
    assert receiver.receive() is None
    assert not receiver.wait(0)
    receiver.grant("a")
    sender.flush()
    assert receiver.wait(600)


def test_closed_ends_say_so_and_hold_nothing(open_ends: Callable[..., Ends]) -> None:
    sender, receiver = open_ends(credit=1)
    for index in range(3):
        sender.send(chunk(index=index))
    sender.send(chunk("b", last=True))
    assert receiver.receive() is not None
    for _ in range(2):
        sender.close()
        receiver.close()
    with pytest.raises(ChannelClosed):
        sender.send(chunk())
    with pytest.raises(ChannelClosed):
        receiver.receive()
    with pytest.raises(ChannelClosed):
        receiver.wait(0)
    for end in (sender, receiver):
        end.forget("a")
        assert end.num_requests == 0
    receiver.grant("a")
    assert sender.flush() == 0
    assert sender.credit("a") == 0


@pytest.mark.parametrize("name", NAMES)
def test_opening_before_creating_is_an_error(name: str, folder_for: Folder) -> None:
    connector = make_connector(name, folder_for(name), {})
    with pytest.raises(NoChannel, match="'x'"):
        connector.sender("x")
    with pytest.raises(NoChannel, match="'x'"):
        connector.receiver("x", NOTES)


@pytest.mark.parametrize("name", NAMES)
def test_no_descriptor_is_left(name: str, folder_for: Folder) -> None:
    connector = make_connector(name, folder_for(name), {})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        connector.create("x")
        ends = connector.sender("x"), connector.receiver("x", NOTES)
        for end in ends:
            end.close()
        connector.destroy("x")
        del ends
    assert len(os.listdir("/proc/self/fd")) == before


def test_unknown_names_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known: inprocess, shm, tcp"):
        make_connector("smh", tmp_path, {})
    with pytest.raises(ValueError, match="arena_mb"):
        make_connector("shm", tmp_path, {"arena": 1})


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc"), st.integers(0, 60000)),
    st.tuples(st.just("receive"), st.just(""), st.integers(1, 4)),
    st.tuples(st.just("grant"), st.sampled_from("abc"), st.integers(1, 3)),
    st.tuples(st.just("flush"), st.just(""), st.just(0)),
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(window=st.integers(0, 3), operations=st.lists(OPERATIONS, max_size=80))
def test_any_use_keeps_order_bytes_and_credit(
    name: str, linked_directory: Path, window: int, operations: list[tuple[str, str, int]]
) -> None:
    connector = settled_connector(name, linked_directory, {"arena_mb": 1, "credit": window})
    connector.create("x")
    sender, receiver = connector.sender("x"), connector.receiver("x", NOTES)
    num_bytes = 0
    sent: dict[str, int] = dict.fromkeys("abc", 0)
    received: dict[str, int] = dict.fromkeys("abc", 0)
    granted: dict[str, int] = dict.fromkeys("abc", 0)
    expected: dict[str, deque[int]] = {key: deque() for key in "abc"}

    def take() -> bool:
        got = receiver.receive()
        if got is None:
            return False
        key = got.request_id
        size = expected[key].popleft()
        values = got.tensors["v"].numpy()
        assert got.index == received[key]
        assert len(values) == size
        assert (values == got.index % 251).all()
        received[key] += 1
        assert not window or received[key] <= granted[key] + window
        return True

    for operation, key, number in operations:
        if operation == "send":
            sender.send(chunk(key, sent[key], number))
            expected[key].append(number)
            sent[key] += 1
            num_bytes += encode(chunk(key, sent[key] - 1, number)).num_bytes
        elif operation == "grant":
            count = min(number, received[key] - granted[key])
            receiver.grant(key, number)
            granted[key] += count
        elif operation == "flush":
            sender.flush()
        else:
            for _ in range(number):
                take()
        usage = connector.usage("x")
        assert usage.num_sent + usage.num_backlog == sum(sent.values())
        assert usage.num_received == sum(received.values())
        assert 0 <= usage.used_bytes <= usage.size_bytes
        assert (usage.used_bytes == 0) == (usage.num_sent == usage.num_received)
    for _ in range(1000):  # everything arrives in the end
        if sent == received:
            break
        for key in "abc":
            granted[key] = received[key]
            receiver.forget(key)
        sender.flush()
        take()
    assert sent == received
    usage = connector.usage("x")
    assert usage.num_sent == usage.num_received == sum(sent.values())
    assert (usage.sent_bytes, usage.num_backlog, usage.used_bytes) == (num_bytes, 0, 0)
    for end in (sender, receiver):
        end.close()
    connector.destroy("x")


ECHO = """
import select, sys
from pathlib import Path
from omnistage.connectors.messages import Message, Messages
from omnistage.connectors import make_connector
connector = make_connector(sys.argv[1], Path(sys.argv[2]), {"arena_mb": 1, "credit": 4})
class Note(Message, frozen=True):
    text: str = ""
    more: dict = {}
receiver, sender = connector.receiver("there", Messages(Note)), connector.sender("back")
count, left = 0, 0
while count < 2000 or left:
    chunk = receiver.receive()
    if chunk is not None:
        receiver.grant(chunk.request_id)
        sender.send(chunk)
        count += 1
        continue
    left = sender.flush()
    assert not left or select.select([receiver, sender], [], [], 600)[0]
    if not left and count < 2000:
        assert select.select([receiver, sender], [], [], 600)[0]
"""


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_two_processes_lose_nothing_and_no_wake_up(name: str, folder_for: Folder) -> None:
    folder = folder_for(name)
    connector = make_connector(name, folder, {"arena_mb": 1, "credit": 4})
    for address in ("there", "back"):
        connector.create(address)
    sender, receiver = connector.sender("there"), connector.receiver("back", NOTES)
    sent, got = 0, 0
    with subprocess.Popen([sys.executable, "-c", ECHO, name, str(folder)]) as echo:
        while got < 2000:
            if sent < 2000 and sent - got < 300:
                sender.send(chunk(f"r{sent % 3}", sent, size=sent % 5000))
                sent += 1
            elif not select.select([receiver.fileno(), sender.fileno()], [], [], 600)[0]:
                echo.kill()
                pytest.fail(f"a wake-up was lost after {sent} sent and {got} back")
            sender.flush()
            while (back := receiver.receive()) is not None:
                receiver.grant(back.request_id)
                assert (back.tensors["v"].numpy() == back.index % 251).all()
                got += 1
    assert echo.returncode == 0
    sender.close()
    receiver.close()
    for address in ("there", "back"):
        connector.destroy(address)
