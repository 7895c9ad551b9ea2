"""Gauges that are read at scrape time: requests, stages, channels."""

import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from operator import add
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omnistage.connectors.contract import ChannelUsage
from omnistage.server.runtime.first_sound import SpokenPlaces
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_record import StageRecord, StageState
from omnistage.stage_configs.replicas import MARK, number_of, stage_of
from omnistage.stages.messages.addresses import ends_of
from omnistage.stages.messages.families import stage_labels

OF_A_STAGE = ("stage", "replica")
OF_A_CHANNEL = ("source", "target", "channel", "replica")
NANOSECOND = 1e-9


class OfStage(NamedTuple):
    """A metric that the record of each stage has."""

    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    about: str
    value: Callable[[StageRecord], float]


class OfChannel(NamedTuple):
    """A metric that each channel has."""

    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    about: str
    value: Callable[[ChannelUsage], float]


STAGE_METRICS = (
    OfStage(
        GaugeMetricFamily,
        "stage_up",
        "Whether the stage is ready.",
        lambda record: record.state is StageState.READY,
    ),
    OfStage(
        GaugeMetricFamily,
        "stage_requests_running",
        "Requests in the stage.",
        lambda record: record.counters["running"],
    ),
    OfStage(
        GaugeMetricFamily,
        "stage_requests_waiting",
        "Requests that wait for a seat in the stage's engine.",
        lambda record: record.counters["waiting"],
    ),
    OfStage(
        GaugeMetricFamily,
        "stage_kv_bytes",
        "Bytes of keys and values that wait to be sent, or that have come for requests.",
        lambda record: record.held.get("kv_bytes", 0),
    ),
    OfStage(
        CounterMetricFamily,
        "stage_nan_steps",
        "Steps with a NaN among the logits.",
        lambda record: record.counters["nan_steps"],
    ),
    OfStage(
        CounterMetricFamily,
        "stage_restarts",
        "How often the stage was started again.",
        lambda record: record.generation - 1,
    ),
)
CHANNEL_METRICS = (
    OfChannel(
        CounterMetricFamily,
        "channel_chunks",
        "Chunks that were sent on the channel.",
        lambda usage: usage.num_sent,
    ),
    OfChannel(
        CounterMetricFamily,
        "channel_bytes",
        "Bytes of the chunks that were sent, with what describes them.",
        lambda usage: usage.sent_bytes,
    ),
    OfChannel(
        CounterMetricFamily,
        "channel_received_chunks",
        "Chunks that were received from the channel.",
        lambda usage: usage.num_received,
    ),
    OfChannel(
        CounterMetricFamily,
        "channel_wait_seconds",
        "From sending to receiving, of all received chunks together.",
        lambda usage: usage.wait_ns * NANOSECOND,
    ),
    OfChannel(
        CounterMetricFamily,
        "channel_backlog_seconds",
        "What of the wait was for want of credit or of room in the ring.",
        lambda usage: usage.backlog_ns * NANOSECOND,
    ),
    OfChannel(
        GaugeMetricFamily,
        "channel_backlog_chunks",
        "Chunks that wait for credit or for room in the ring.",
        lambda usage: usage.num_backlog,
    ),
    OfChannel(
        GaugeMetricFamily,
        "ring_used_bytes",
        "Bytes in the channel's ring that were not received yet.",
        lambda usage: usage.used_bytes,
    ),
    OfChannel(
        GaugeMetricFamily,
        "ring_size_bytes",
        "Room of the channel's ring.",
        lambda usage: usage.size_bytes,
    ),
)


class Present(Collector):
    """Looked up when it is asked for; no stage is asked."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of requests, of stages and of channels."""
        flights = self._runtime.flights
        running = flights.num_running
        name = "omnistage_num_requests_running"
        yield GaugeMetricFamily(name, "Requests that have an output.", running)
        name = "omnistage_num_requests_waiting"
        yield GaugeMetricFamily(name, "Requests that have none yet.", flights.num_waiting)
        yield from _of_spoken(flights.spoken)
        yield from self._of_stages()
        yield self._ages()
        yield from self._of_channels()

    def _of_stages(self) -> Iterator[Metric]:
        links = self._runtime.fleet.stages
        labels = {name: tuple(stage_labels(name).values()) for name in links}
        for kind, metric, about, value in STAGE_METRICS:
            family = kind(f"omnistage_{metric}", about, labels=OF_A_STAGE)
            for name, link in links.items():
                family.add_metric(labels[name], value(link.record))
            yield family

    def _ages(self) -> Metric:
        metric = "omnistage_stage_metrics_age_seconds"
        about = "How long ago the stage measured what this page shows of its own."
        ages = GaugeMetricFamily(metric, about, labels=OF_A_STAGE)
        now = time.monotonic()
        for name, link in self._runtime.fleet.stages.items():
            measured_at = link.record.measured_at
            if measured_at is not None:
                ages.add_metric(tuple(stage_labels(name).values()), now - measured_at)
        return ages

    def _of_channels(self) -> Iterator[Metric]:
        usages = by_ends(self._runtime.fleet.channel_usages)
        for kind, name, about, value in CHANNEL_METRICS:
            family = kind(f"omnistage_{name}", about, labels=OF_A_CHANNEL)
            for labels, usage in usages.items():
                family.add_metric(labels, value(usage))
            yield family


def _of_spoken(spoken: SpokenPlaces | None) -> Iterator[Metric]:
    name = "omnistage_spoken_places"
    about = "Spoken answers that may be in the server, so that their first sound is in time."
    yield GaugeMetricFamily(name, about, inf if spoken is None else spoken.num_allowed)
    name = "omnistage_spoken_refused"
    num_refused = 0 if spoken is None else spoken.num_refused
    yield CounterMetricFamily(name, "Spoken answers refused for want of these.", num_refused)


def by_ends(
    usages: Mapping[str, ChannelUsage],
) -> dict[tuple[str, str, str, str], ChannelUsage]:
    """Usages by their channels' labels; those of the lanes of a stage are added up."""
    found: dict[tuple[str, str, str, str], ChannelUsage] = {}
    for address, usage in usages.items():
        labels = channel_labels(address)
        before = found.get(labels)
        found[labels] = ChannelUsage(*map(add, before, usage)) if before else usage
    return found


def channel_labels(address: str) -> tuple[str, str, str, str]:
    """Source, target, channel and replica: the numbers of those ends that are one of several."""
    source, target, channel = ends_of(address)
    numbers = [str(number_of(end)) for end in (source, target) if MARK in end]
    return stage_of(source), stage_of(target), channel, "-".join(numbers) or "0"
