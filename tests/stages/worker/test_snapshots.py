"""What a stage measures is sent now and then, and holds nobody up."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector
from support.waiting import wait_until

from omnistage.connectors import make_connector
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, TO_GATEWAY, Metrics
from omnistage.stages.worker import snapshots
from omnistage.stages.worker.snapshots import Snapshots

WINDOW = 3
Send = Callable[..., "Gateway"]


class Gateway:
    """Who gets the snapshots."""

    def __init__(self, directory: Path, *collectors: Collector) -> None:
        self.connector = make_connector("inprocess", directory, {"arena_mb": 4, "credit": WINDOW})
        self.connector.create("one.gateway")
        self.receiver = self.connector.receiver("one.gateway", TO_GATEWAY)
        self.sender = self.connector.sender("one.gateway")
        self.snapshots = Snapshots("one", collectors, self.sender)
        self.snapshots.start()

    def next(self) -> Metrics:
        while (chunk := self.receiver.receive()) is None:
            assert self.receiver.wait(600)
        assert chunk.request_id == ABOUT_ITSELF
        assert isinstance(chunk.message, Metrics)
        return chunk.message

    def close(self) -> None:
        self.snapshots.close()
        self.sender.close()
        self.receiver.close()
        self.connector.destroy("one.gateway")


@pytest.fixture
def send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Send]:
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.01)
    opened: list[Gateway] = []

    def start(*collectors: Collector) -> Gateway:
        opened.append(Gateway(tmp_path, *collectors))
        return opened[-1]

    yield start
    for gateway in opened:
        gateway.close()


def gauge(name: str, value: float = 1.0) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge(name, "What it is.", registry=registry).set(value)
    return registry


def test_a_snapshot_has_what_is_there_now_with_the_stages_labels(send: Send) -> None:
    registry = CollectorRegistry()
    used = Gauge("used", "What is used.", registry=registry)
    gateway = send(registry, gauge("other"))
    first = gateway.next()
    assert [family.samples for family in first.families] == [
        'used{replica="0",stage="one"} 0.0\n',
        'other{replica="0",stage="one"} 1.0\n',
    ]
    used.set(7)
    gateway.receiver.grant(ABOUT_ITSELF)
    wait_until(lambda: 'used{replica="0",stage="one"} 7.0\n' in samples_of(gateway))


def samples_of(gateway: Gateway) -> list[str]:
    gateway.receiver.grant(ABOUT_ITSELF)
    return [family.samples for family in gateway.next().families]


def test_a_gateway_that_takes_none_is_sent_no_more_than_its_window(send: Send) -> None:
    gateway = send(gauge("used"))
    wait_until(lambda: gateway.connector.usage("one.gateway").num_sent == WINDOW)
    assert not gateway.snapshots._closing.wait(0.1)  # ten intervals
    usage = gateway.connector.usage("one.gateway")
    assert (usage.num_sent, usage.num_backlog) == (WINDOW, 0)
    for _ in range(WINDOW):
        gateway.next()
    gateway.receiver.grant(ABOUT_ITSELF)
    gateway.next()


class Broken(Collector):
    """Cannot be collected the first time."""

    def __init__(self) -> None:
        self.num_asked = 0

    def collect(self) -> Iterator[Metric]:
        self.num_asked += 1
        if self.num_asked == 1:
            raise RuntimeError("not now")
        return iter(gauge("late").collect())


def test_after_a_failure_the_next_snapshot_is_sent(
    send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = send(Broken())
    assert [family.name for family in gateway.next().families] == ["late"]
    assert "the metrics of this stage could not be sent" in caplog.text


def test_a_family_that_is_too_long_is_left_out_and_named_once(
    send: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshots, "MAX_CHARACTERS", 300)
    registry = CollectorRegistry()
    many = Gauge("many", "Too many.", ["number"], registry=registry)
    for number in range(100):
        many.labels(number)
    with caplog.at_level(logging.WARNING):
        gateway = send(gauge("before"), registry, gauge("after"))
        for _ in range(4):
            names = [family.name for family in gateway.next().families]
            assert names == ["before", "after"]
            gateway.receiver.grant(ABOUT_ITSELF)
    assert caplog.text.count("many is not at /metrics: it has too many series") == 1


class Hanging(Collector):
    """Waits until it is freed."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.is_free = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.has_begun.set()
        self.is_free.wait()
        return iter(())


def test_it_ends_although_a_collector_hangs(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CLOSE_S", 0.05)
    hanging = Hanging()
    gateway = send(hanging)
    assert hanging.has_begun.wait(600)
    gateway.snapshots.close()
    assert gateway.snapshots._thread.is_alive()
    hanging.is_free.set()
    gateway.snapshots._thread.join(600)
    assert not gateway.snapshots._thread.is_alive()
