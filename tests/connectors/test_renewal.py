"""A channel one end of which has died, renewed: the other end goes on as if nothing had been."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.channels.notes import NOTES, Note
from support.channels.settled import settled_connector

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Connector, NoChannel, Receiver, Sender
from omnistage.connectors.receiver import RingReceiver
from omnistage.connectors.shm import ShmConnector

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


def test_a_channel_that_has_come_to_a_generation_is_not_renewed_to_it(tmp_path: Path) -> None:
    connector = ShmConnector(tmp_path)
    connector.create("c")
    sender, receiver = connector.sender("c"), connector.receiver("c", NOTES)
    connector.renew("c", 3)
    sender.send(chunk("a"))
    for generation in (0, 3):
        connector.renew("c", generation)
    assert connector.ring("c").generation == 3
    assert received(receiver) == [("a", 0)]
    connector.renew("c")
    assert connector.ring("c").generation == 4
    sender.close()
    receiver.close()


DIE_WHILE_RENEWING = """
import os, sys
from pathlib import Path
from support.channels.victim import die_after
from support.channels.notes import NOTES
from omnistage.connectors.shm import ShmConnector

connector = ShmConnector(Path(sys.argv[1]))
connector.create("c")
sender, receiver = connector.sender("c"), connector.receiver("c", NOTES)
code, num_instructions, num_renewed = -9, 1, 0
while code == -9:
    before = connector.ring("c").generation
    if os.fork() == 0:
        die_after(num_instructions, "connectors")
        connector.renew("c")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    now = connector.ring("c").generation
    assert now in (before, before + 1)
    num_renewed += now - before
    connector.renew("c", now)  # finishes what is begun, and begins nothing
    sender.flush()
    receiver.receive()
    assert sender._ring.generation == receiver._ring.generation == now
    assert not list(Path(sys.argv[1]).glob("c.old"))
    num_instructions += 5
assert num_instructions > 100 and num_renewed > 5
sys.exit(code)
"""


def test_a_renewal_by_a_process_that_is_killed_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", DIE_WHILE_RENEWING, str(tmp_path)]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)


def test_processes_that_renew_at_once_do_it_one_after_the_other(tmp_path: Path) -> None:
    connector = ShmConnector(tmp_path)
    connector.create("c")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ShmConnector(tmp_path).renew("c"), range(200)))
    assert connector.ring("c").generation == 200
    assert {path.name for path in tmp_path.iterdir()} == {"c", "c.chunk", "c.room"}


@pytest.mark.parametrize("step", ["link", "rename"])
def test_a_channel_that_is_destroyed_while_it_is_renewed_is_no_channel(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = ShmConnector(tmp_path)
    connector.create("c")
    where = os if step == "link" else Path
    goes_on = getattr(where, step)

    def destroyed_first(*paths: Path | str) -> None:
        connector.destroy("c")
        goes_on(*paths)

    monkeypatch.setattr(where, step, destroyed_first)
    with pytest.raises(NoChannel, match="'c'"):
        connector.renew("c")


def test_a_channel_that_is_being_created_is_no_channel_yet(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    with pytest.raises(NoChannel, match="'c'"):
        ShmConnector(tmp_path).access("c")
