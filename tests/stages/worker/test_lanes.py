"""Channels between stages that have several engines."""

import select
from collections import Counter
from pathlib import Path

import pytest

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.addresses import ends_of, is_end_of, lane_addresses
from omnistage.stages.messages.edge import Codes
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.ports import Port

NAMES = [f"request-{number}" for number in range(200)]


def test_requests_are_spread_over_all_lanes_and_known_again() -> None:
    spread = Counter(lane_of(name, 4) for name in NAMES)
    assert set(spread) == {0, 1, 2, 3}
    assert min(spread.values()) > 25
    assert [lane_of(name, 4) for name in NAMES] == [lane_of(name, 4) for name in NAMES]
    assert {lane_of(name, 1) for name in NAMES} == {0}


def test_a_channel_without_lanes_has_its_own_name() -> None:
    assert lane_addresses("a.b.rows") == [["a.b.rows"]]
    assert lane_addresses("a.b.rows", 1, 2) == [["a.b.rows.0.0", "a.b.rows.0.1"]]
    assert lane_addresses("a.b.rows", 2, 1) == [["a.b.rows.0.0"], ["a.b.rows.1.0"]]
    assert ends_of("a.b.rows.1.0") == ends_of("a.b.rows") == ("a", "b", "rows")
    assert is_end_of("b", "a.b.rows.1.0")
    assert not is_end_of("1", "a.b.rows.1.0")


@pytest.fixture
def port(tmp_path: Path) -> Port:
    port = Port("a.b.rows", "shm", str(tmp_path), {"credit": 1}, sources=2, targets=2)
    connector = make_connector("shm", tmp_path, {"credit": 1})
    for addresses in lane_addresses(port.address, 2, 2):
        for address in addresses:
            connector.create(address)
    return port


def test_every_lane_sends_a_request_to_the_lane_that_has_it(port: Port) -> None:
    receivers = [port.receivers(lane) for lane in range(2)]
    for source in range(2):
        sender = port.sender(source)
        for name in NAMES:
            sender.send(Chunk(name, Codes(), source, last=True))
        sender.close()
        for lane in range(2):
            got = []
            while (chunk := receivers[lane][source].receive()) is not None:
                got.append((chunk.request_id, chunk.index))
            assert got == [(name, source) for name in NAMES if lane_of(name, 2) == lane]
    for receiver in (*receivers[0], *receivers[1]):
        receiver.close()


def test_credit_that_comes_back_from_any_lane_wakes_its_sender(port: Port) -> None:
    sender = port.sender(0)
    all_receivers = [port.receivers(lane) for lane in range(2)]
    receivers = [of_lane[0] for of_lane in all_receivers]
    poller = select.poll()
    poller.register(sender.fileno(), select.POLLIN)
    names = [next(name for name in NAMES if lane_of(name, 2) == lane) for lane in range(2)]
    for name in names:
        assert sender.credit(name) == 1
        sender.send(Chunk(name, Codes()))
        sender.send(Chunk(name, Codes(), 1))
        assert sender.credit(name) == 0
    assert sender.num_requests == 2
    for name, receiver in zip(names, receivers, strict=True):
        assert sender.flush() > 0
        assert not poller.poll(0)
        assert receiver.receive() is not None
        receiver.grant(name)
        assert poller.poll(1000)
        sender.flush()
        assert receiver.receive() is not None
    assert sender.flush() == 0
    for name in names:
        sender.forget(name)
    for receiver in receivers:
        receiver.forget(names[0])
        receiver.forget(names[1])
    assert sender.num_requests == 0
    sender.close()
    for receiver in (*all_receivers[0], *all_receivers[1]):
        receiver.close()
