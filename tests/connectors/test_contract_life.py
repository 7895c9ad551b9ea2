"""Hold every connector to one contract: the life of ends, and any use against a model."""

import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.channels.channel_ends import NAMES, Ends, Folder, chunk
from support.channels.notes import NOTES
from support.channels.settled import settled_connector

from omnistage.connectors import make_connector
from omnistage.connectors.codec import encode
from omnistage.connectors.contract import ChannelClosed, NoChannel


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
