"""Families of metrics as a stage sends them and as GET /metrics shows them: lines of text.

A stage renders its own, with the labels that say whose they are. So the gateway only has to put the
lines of all processes below one heading for each family.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import Metric, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from omnistage.stage_configs.replicas import number_of, stage_of

# Buckets of times: as fine as a first token's wants, up to a long answer's.
SECONDS = (
    *(0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0),
    *(5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series


def stage_labels(replica: str) -> dict[str, str]:
    """The labels of what a replica of a stage measures, or the only process of that name."""
    return {"stage": stage_of(replica), "replica": str(number_of(replica))}


class MetricFamily(msgspec.Struct, frozen=True):
    """One metric: its name and its lines of help and type, and the lines of its samples."""

    name: str
    heading: str
    samples: str

    @property
    def num_characters(self) -> int:
        """Returns the characters of all of its lines."""
        return len(self.heading) + len(self.samples)


class _Only(Collector):
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """It alone."""
        return (self._metric,)


def families_of(collector: Collector, labels: Mapping[str, str]) -> Iterator[MetricFamily]:
    """Returns what is collected, each sample with these labels too.

    A label of the same name that a sample has already becomes `exported_NAME`, as it does where
    Prometheus adds labels itself.
    """
    for metric in collector.collect():
        text = generate_latest(_Only(_labelled(metric, labels))).decode()
        help_line, type_line, samples = text.split("\n", 2)
        name = type_line.split(" ")[2]
        yield MetricFamily(name, f"{help_line}\n{type_line}\n", samples)


def _labelled(metric: Metric, labels: Mapping[str, str]) -> Metric:
    labelled = Metric(metric.name, metric.documentation, metric.type)
    labelled.samples = [
        sample._replace(labels={**_renamed(sample.labels, labels), **labels})
        for sample in metric.samples
    ]
    return labelled


def _renamed(own: Mapping[str, str], labels: Mapping[str, str]) -> Mapping[str, str]:
    if labels.keys().isdisjoint(own):
        return own
    return {f"exported_{name}" if name in labels else name: value for name, value in own.items()}


def page(families: Iterable[MetricFamily]) -> str:
    """One text of them all; those of one name stand together, below the first one's heading."""
    groups: dict[str, list[str]] = {}
    for family in families:
        groups.setdefault(family.name, [family.heading]).append(family.samples)
    return "".join(text for group in groups.values() for text in group)
